/* SPDX-License-Identifier: Apache-2.0 */
/* operator.c - arithmetic as Python has it, on 64-bit integers: what would not fit is an
 * error, where Python goes on with longer ones. */
#include <math.h>
#include <string.h>

#include "server/jinja/run.h"

static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};

static struct jinja_value whole(struct jinja_run *r, bool overflow, int64_t v)
{
    if (overflow)
        jinja_fail(&r->m, "integers beyond 64 bits are not supported");
    return jinja_int(v);
}

static void need_divisor(struct jinja_run *r, bool zero)
{
    if (zero)
        jinja_fail(&r->m, "division by zero");
}

static struct jinja_value power(struct jinja_run *r, int64_t a, int64_t b)
{
    int64_t v = 1;
    bool overflow = false;
    if (b < 0) {
        need_divisor(r, a == 0);
        return jinja_float(pow((double)a, (double)b));
    }
    for (; b > 0 && !overflow; b--) {
        if (a == 1 || a == 0 || a == -1)
            return jinja_int(a == -1 && b % 2 == 0 ? 1 : a);
        overflow = __builtin_mul_overflow(v, a, &v);
    }
    return whole(r, overflow, v);
}

static struct jinja_value integers(struct jinja_run *r, enum jinja_operator op, int64_t a,
                                   int64_t b)
{
    int64_t v = 0;
    bool overflow = false;
    switch (op) {
    case OP_ADD:
        overflow = __builtin_add_overflow(a, b, &v);
        break;
    case OP_SUB:
        overflow = __builtin_sub_overflow(a, b, &v);
        break;
    case OP_MUL:
        overflow = __builtin_mul_overflow(a, b, &v);
        break;
    case OP_DIV:
        need_divisor(r, b == 0);
        return jinja_float((double)a / (double)b);
    case OP_POW:
        return power(r, a, b);
    default:
        need_divisor(r, b == 0);
        overflow = b == -1 && a == INT64_MIN;
        if (!overflow && op == OP_FLOORDIV)
            v = a / b - (a % b != 0 && (a < 0) != (b < 0));
        else if (!overflow)
            v = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    }
    return whole(r, overflow, v);
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0)
        return (b < 0) != (m < 0) ? m + b : m;
    return copysign(0.0, b);
}

static double float_floordiv(double a, double b)
{
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0))
        q -= 1;
    if (q == 0)
        return copysign(0.0, a / b);
    double f = floor(q);
    return q - f > 0.5 ? f + 1 : f;
}

static struct jinja_value floats(struct jinja_run *r, enum jinja_operator op, double a, double b)
{
    switch (op) {
    case OP_ADD:
        return jinja_float(a + b);
    case OP_SUB:
        return jinja_float(a - b);
    case OP_MUL:
        return jinja_float(a * b);
    case OP_DIV:
        need_divisor(r, b == 0);
        return jinja_float(a / b);
    case OP_FLOORDIV:
        need_divisor(r, b == 0);
        return jinja_float(float_floordiv(a, b));
    case OP_MOD:
        need_divisor(r, b == 0);
        return jinja_float(float_mod(a, b));
    default:
        need_divisor(r, a == 0 && b < 0);
        if (a < 0 && b != floor(b))
            jinja_fail(&r->m, "complex numbers are not supported");
        double v = pow(a, b);
        if (isinf(v) && !isinf(a) && !isinf(b))
            jinja_fail(&r->m, "numerical result out of range");
        return jinja_float(v);
    }
}

/* A string or list, some times over. */
static struct jinja_value repeat(struct jinja_run *r, struct jinja_value v, int64_t times)
{
    bool text = v.type == JINJA_STR;
    size_t n = text ? v.u.s.n : v.u.list->n, k = times < 0 ? 0 : (size_t)times;
    size_t size = text ? 1 : sizeof(struct jinja_value);
    if (n && k > r->m.most / size / n)
        jinja_leave(&r->m, JINJA_LIMIT, "the chat template took more than %zu bytes of memory",
                    r->m.most);
    jinja_step(r, n * k * size);
    if (!text) {
        struct jinja_value list = jinja_values(r, v.type, n * k);
        for (size_t i = 0; i < n * k; i++)
            jinja_list_add(r, list, v.u.list->v[i % n]);
        return list;
    }
    char *p = jinja_alloc_items(&r->m, n * k, 1);
    for (size_t i = 0; n && i < k; i++)
        memcpy(p + i * n, v.u.s.p, n);
    return jinja_string(p, n * k);
}

static bool sequence(struct jinja_value v)
{
    return v.type == JINJA_STR || v.type == JINJA_LIST || v.type == JINJA_TUPLE;
}

static struct jinja_value add_lists(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    size_t n = a.u.list->n + b.u.list->n;
    struct jinja_value list = jinja_values(r, a.type, n);
    jinja_step(r, n * sizeof(struct jinja_value));
    for (size_t i = 0; i < a.u.list->n; i++)
        jinja_list_add(r, list, a.u.list->v[i]);
    for (size_t i = 0; i < b.u.list->n; i++)
        jinja_list_add(r, list, b.u.list->v[i]);
    return list;
}

struct jinja_value jinja_binary(struct jinja_run *r, enum jinja_operator op, struct jinja_value a,
                                struct jinja_value b)
{
    double x, y;
    bool modulo = op == OP_MOD && a.type == JINJA_STR;
    jinja_need(r, a);
    if (!modulo)
        jinja_need(r, b);
    if (a.safe || b.safe)
        jinja_fail(&r->m, "'%s' with a string that went through |safe or |escape is not supported",
                   signs[op]);
    if (modulo)
        return jinja_percent(r, a, b);
    if (jinja_number(a, &x) && jinja_number(b, &y)) {
        if (a.type == JINJA_FLOAT || b.type == JINJA_FLOAT)
            return floats(r, op, x, y);
        return integers(r, op, a.type == JINJA_BOOL ? a.u.b : a.u.i,
                        b.type == JINJA_BOOL ? b.u.b : b.u.i);
    }
    if (op == OP_ADD && a.type == JINJA_STR && b.type == JINJA_STR) {
        jinja_step(r, b.u.s.n);
        return jinja_join2(&r->m, a, b);
    }
    if (op == OP_ADD && a.type == b.type && sequence(a))
        return add_lists(r, a, b);
    if (op == OP_MUL && sequence(a) && (b.type == JINJA_INT || b.type == JINJA_BOOL))
        return repeat(r, a, b.type == JINJA_BOOL ? b.u.b : b.u.i);
    if (op == OP_MUL && sequence(b) && (a.type == JINJA_INT || a.type == JINJA_BOOL))
        return repeat(r, b, a.type == JINJA_BOOL ? a.u.b : a.u.i);
    jinja_fail(&r->m, "unsupported operand types for %s: '%s' and '%s'", signs[op],
               jinja_type_name(a.type), jinja_type_name(b.type));
}
