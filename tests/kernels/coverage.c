/* coverage.c - see coverage.h. */
#include "tests/kernels/coverage.h"

int coverage_gain(const struct coverage *c, const int *feature, int n)
{
    int gain = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++)
            gain += c->seen[feature[i]][feature[j]] ? 0 : i == j ? 10 : 1;
    return gain;
}

void coverage_add(struct coverage *c, const int *feature, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            int a = feature[i], b = feature[j];
            *(i == j ? &c->values : &c->pairs) += !c->seen[a][b];
            c->seen[a][b] = c->seen[b][a] = true;
        }
}
