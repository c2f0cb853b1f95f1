/* strategy_mcts.c - tree search over knob changes, guided by the adviser.
 *
 * After Reasoning Compiler (PAPERS): a node is a point, an edge a legal change of one knob. UCT
 * with c = sqrt(2) descends to a node that has fewer than two children; the adviser proposes a
 * sequence of changes there; what is illegal in it is dropped, and if nothing new is left one
 * random change is made. A short random rollout scored by the cost model says how promising the new
 * leaf is. Measurements replace what the model said, along the whole path up. A batch is half of
 * what looks fastest in the tree, half of what grew where the tree has done best.
 *
 * A language model takes longer to answer than a tree takes to grow, so it is asked after a batch
 * about the nodes that will probably be expanded next, and its moves are played when the next
 * batch begins, and measured first. Without one the heuristic's moves are played: downhill along
 * the prediction.
 *
 * One change of a knob cannot reach every point from every other (some knobs only change
 * together), so the tree has a root without a point, whose children are the best point of every
 * family, winners of neighbouring slots, and the fastest points known. No point is in the tree
 * twice. What no tree reaches comes last, by rank.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/hash.h"
#include "specializer/search/strategy.h"
#include "specializer/trust.h"

enum { CHILDREN = 2, ROLLOUT = 4, GROWTH = 8, NODES_MOST = 16384, WANTS_MOST = 64, ROOT = 0 };
#define UCT_C 1.4142135623730951

struct node {
    int32_t id; /* -1: the root */
    int parent, first, next, children;
    int visits;
    double value;  /* sum of the rewards below and here */
    double reward; /* its own share in that */
    bool closed;   /* no child more: two, or no new point one change away */
    bool dead;     /* nothing can grow below */
    bool measured; /* reward is of a measurement */
    bool advised;  /* the heuristic's moves were played */
    int wanted;    /* times the language model was asked about it */
    int batch;     /* in which it was made */
};

struct tree {
    struct node *node;
    int nodes;
    int *of; /* [size] node of a point, or -1 */
    uint64_t random;
    double scale;   /* speed x predicted seconds, as measured */
    double fastest; /* speed, measured or predicted */
    int wants, batch;
    struct trust trust;
};

static void *mcts_open(const struct search *s, uint64_t seed)
{
    struct tree *t = xcalloc(1, sizeof *t);
    int size = space_size(s->space);
    t->random = seed;
    t->node = xcalloc(NODES_MOST, sizeof *t->node);
    t->node[ROOT] = (struct node){.id = -1, .parent = -1, .first = -1, .next = -1};
    t->nodes = 1;
    t->of = xmalloc(((size_t)size + 1) * sizeof *t->of);
    for (int i = 0; i < size; i++)
        t->of[i] = -1;
    return t;
}

static void mcts_close(void *state)
{
    struct tree *t = state;
    free(t->node);
    free(t->of);
    free(t);
}

/* ---- scores -----------------------------------------------------------------------------------
 */

/* Speed of a point, and its share of the fastest speed: what is measured, else what is predicted.
 */
static double speed_of(const struct tree *t, const struct search *s, int32_t id)
{
    if (s->trial[id] == TRIAL_MEASURED)
        return (double)s->speed[id];
    double predicted = space_predicted(s->space, id);
    return s->trial[id] == TRIAL_REFUSED || predicted <= 0 ? 0 : t->scale / predicted;
}

static double score_of(const struct tree *t, const struct search *s, int32_t id)
{
    return fmin(1, speed_of(t, s, id) / t->fastest);
}

/* The yardstick: what a second predicted is worth in speed, and the fastest speed there is. */
static void calibrate(struct tree *t, const struct search *s)
{
    double sum = 0, shortest = INFINITY, best = 0;
    int n = 0;
    for (int32_t i = 0; i < space_size(s->space); i++) {
        double predicted = space_predicted(s->space, i);
        if (predicted <= 0)
            continue;
        shortest = fmin(shortest, predicted);
        if (s->trial[i] == TRIAL_MEASURED) {
            sum += log((double)s->speed[i] * predicted);
            best = fmax(best, (double)s->speed[i]);
            n++;
        }
    }
    t->scale = n > 0 ? exp(sum / n) : isfinite(shortest) ? shortest : 1;
    t->fastest = fmax(best, isfinite(shortest) ? t->scale / shortest : 1);
    if (!(t->fastest > 0))
        t->fastest = 1;
}

static void reward(struct tree *t, int node, double by, int visits)
{
    for (; node >= 0; node = t->node[node].parent) {
        t->node[node].value += by;
        t->node[node].visits += visits;
    }
}

/* What was measured since the last batch takes the place of what had been thought. */
static void learn(struct tree *t, const struct search *s)
{
    for (int i = 1; i < t->nodes; i++) {
        struct node *n = &t->node[i];
        if (n->measured || s->trial[n->id] < TRIAL_MEASURED)
            continue;
        double now = score_of(t, s, n->id);
        reward(t, i, now - n->reward, 0);
        n->reward = now;
        n->measured = true;
    }
}

/* ---- a batch -----------------------------------------------------------------------------------
 */

struct batch {
    int32_t *id;
    int n, want;
};

static bool in_batch(const struct batch *b, int32_t id)
{
    for (int i = 0; i < b->n; i++)
        if (b->id[i] == id)
            return true;
    return false;
}

static bool take(struct batch *b, const struct search *s, int32_t id)
{
    if (b->n == b->want || s->trial[id] != TRIAL_NONE || in_batch(b, id))
        return false;
    b->id[b->n++] = id;
    return true;
}

typedef bool trust_fn(const struct trust *t, const struct search *s, int32_t id);

/* A point that a language model named, if it is trusted so far. */
static bool take_told(struct tree *t, const struct search *s, struct batch *b, int32_t id,
                      trust_fn *may)
{
    if (!may(&t->trust, s, id) || !take(b, s, id))
        return false;
    trust_took(&t->trust, s, id);
    return true;
}

/* ---- growing ----------------------------------------------------------------------------------
 */

/* A new node for a point that has none; its index, or -1 when there is no room. */
static int add_node(struct tree *t, int parent, int32_t id)
{
    struct node *p = &t->node[parent];
    if (t->nodes == NODES_MOST || (parent != ROOT && p->children == CHILDREN))
        return -1;
    int i = t->nodes++;
    t->node[i] =
        (struct node){.id = id, .parent = parent, .first = -1, .next = p->first, .batch = t->batch};
    p->first = i;
    p->closed = ++p->children == CHILDREN;
    t->of[id] = i;
    return i;
}

static int32_t changed(const struct search *s, int32_t id, int knob, int32_t value)
{
    struct point p;
    space_point(s->space, id, &p);
    p.value[knob] = value;
    return space_find(s->space, space_template(s->space, id), &p);
}

/* The next number from `n` on without a common divisor with `of`: stepping by it meets all. */
static int coprime(int n, int of)
{
    for (;; n++) {
        int a = n, b = of;
        while (b) {
            int rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            return n;
    }
}

/* A legal change of one knob, drawn at random; with `fresh` one that leads out of the tree. -1:
 * there is none. */
static int32_t random_change(struct tree *t, const struct search *s, int32_t id, bool fresh)
{
    const struct template *of = space_template(s->space, id);
    int moves = of->knobs * KNOB_VALUES, from = random_below(&t->random, moves);
    int step = coprime(1 + random_below(&t->random, moves - 1), moves);
    for (int i = 0; i < moves; i++) {
        int at = (int)(((int64_t)i * step + from) % moves), knob = at / KNOB_VALUES;
        if (at % KNOB_VALUES >= of->knob[knob].values)
            continue;
        int32_t to = changed(s, id, knob, of->knob[knob].value[at % KNOB_VALUES]);
        if (to >= 0 && to != id && (!fresh || t->of[to] < 0))
            return to;
    }
    return -1;
}

/* Plays changes from a node; the last node that was new, or -1. An edge may lead through a point
 * that has its place elsewhere: then the play goes on from there. */
static int play(struct tree *t, const struct search *s, int node, const struct moves *m)
{
    int grown = -1;
    for (int i = 0; i < m->n && node >= 0; i++) {
        int32_t id = t->node[node].id;
        int knob = template_knob(space_template(s->space, id), m->change[i].knob);
        int32_t to = knob < 0 ? -1 : changed(s, id, knob, m->change[i].value);
        if (to < 0 || to == id) /* illegal here, or nothing: dropped */
            continue;
        if (t->of[to] >= 0) {
            node = t->of[to];
            continue;
        }
        node = add_node(t, node, to);
        grown = node >= 0 ? node : grown;
    }
    return grown;
}

/* The best score on a short random walk from a leaf, itself included. */
static double rollout(struct tree *t, const struct search *s, int32_t id)
{
    double best = score_of(t, s, id);
    for (int i = 0; i < ROLLOUT && id >= 0; i++) {
        id = random_change(t, s, id, false);
        if (id >= 0)
            best = fmax(best, score_of(t, s, id));
    }
    return best;
}

/* A leaf's first reward. Nodes that a sequence passed on the way get theirs from it, as visits. */
static void score_leaf(struct tree *t, const struct search *s, int leaf)
{
    struct node *n = &t->node[leaf];
    n->measured = s->trial[n->id] >= TRIAL_MEASURED;
    n->reward = n->measured ? score_of(t, s, n->id) : rollout(t, s, n->id);
    reward(t, leaf, n->reward, 1);
}

static double uct(const struct tree *t, int node)
{
    const struct node *n = &t->node[node], *p = &t->node[n->parent];
    if (n->visits == 0)
        return INFINITY;
    return n->value / n->visits + UCT_C * sqrt(log(fmax(p->visits, 1)) / n->visits);
}

/* Down to a node that can have another child; -1: nothing can grow any more. */
static int descend(struct tree *t)
{
    int at = ROOT;
    for (;;) {
        if (at != ROOT && !t->node[at].closed)
            return at;
        int best = -1;
        for (int c = t->node[at].first; c >= 0; c = t->node[c].next)
            if (!t->node[c].dead && (best < 0 || uct(t, c) > uct(t, best)))
                best = c;
        if (best >= 0) {
            at = best;
            continue;
        }
        t->node[at].dead = true;
        if (at == ROOT)
            return -1;
        at = t->node[at].parent; /* look again, without it */
    }
}

/* One round of the tree: select, expand, roll out, back up. False: the tree is complete. */
static bool simulate(struct tree *t, const struct search *s)
{
    int node = descend(t);
    if (node < 0)
        return false;
    struct moves m = {0};
    int leaf = -1;
    if (!t->node[node].advised) {
        advise_moves(s->space, t->node[node].id, &m);
        t->node[node].advised = true;
        leaf = play(t, s, node, &m);
    }
    if (leaf < 0) {
        int32_t to = random_change(t, s, t->node[node].id, true);
        leaf = to >= 0 ? add_node(t, node, to) : -1;
    }
    if (leaf >= 0)
        score_leaf(t, s, leaf);
    else
        t->node[node].closed = true;
    return true;
}

/* What the language model proposed for nodes it was asked about. It is asked for what the cost
 * model cannot see, so some of its leaves are measured whatever they are predicted to do, as far as
 * it is trusted. */
static void play_advice(struct tree *t, const struct search *s, struct batch *b)
{
    int nodes = t->nodes;
    for (int i = 1; s->mover && i < nodes; i++) {
        struct moves m;
        if (t->node[i].wanted == 0 || !s->mover->moves(s->mover->ctx, t->node[i].id, &m))
            continue;
        int leaf = play(t, s, i, &m);
        if (leaf < 0)
            continue;
        score_leaf(t, s, leaf);
        take_told(t, s, b, t->node[leaf].id, trust_near);
    }
}

/* ---- where it begins --------------------------------------------------------------------------
 */

static void plant(struct tree *t, const struct search *s, int32_t id)
{
    if (t->of[id] >= 0)
        return;
    int node = add_node(t, ROOT, id);
    if (node >= 0)
        score_leaf(t, s, node);
    t->node[ROOT].dead = false;
}

/* Best of every family in the heuristic's order, winners of neighbours, the fastest known. */
static void plant_all(struct tree *t, const struct search *s)
{
    int32_t best[CHILDREN];
    unsigned char *seen = xcalloc((size_t)space_families() + 1, 1);
    double first = 0;
    for (int i = s->advice->advised; i < s->advice->priorities && t->batch == 1; i++) {
        int32_t id = s->advice->priority[i];
        double predicted = space_predicted(s->space, id);
        int family = space_family(s->space, id);
        first = first > 0 ? first : predicted;
        if (seen[family] || predicted > FAMILY_HOPELESS * first)
            continue;
        seen[family] = 1;
        plant(t, s, id);
    }
    free(seen);
    for (int i = 0; i < s->firsts; i++)
        plant(t, s, s->first[i]);
    int n = search_best(s, best, CHILDREN);
    for (int i = 0; i < n; i++)
        plant(t, s, best[i]);
}

/* Points that the language model named first: planted, and measured as far as it is trusted. */
static void take_advised(struct tree *t, const struct search *s, struct batch *b, trust_fn *may)
{
    for (int i = 0, looks = 0; i < s->advice->advised && looks < TRUST_LOOKS; i++) {
        int32_t id = s->advice->priority[i];
        looks += s->trial[id] == TRIAL_NONE;
        if (take_told(t, s, b, id, may))
            plant(t, s, id);
    }
}

/* ---- filling it -------------------------------------------------------------------------------
 */

/* Three reasons to measure a node: it looks fastest; it grew now where the tree has done best; it
 * is one change away from what was measured fastest, whatever is predicted. */
enum reason { LOOKS_FAST, GREW_WELL, IS_NEAR, REASONS };

static double worth(const struct tree *t, const struct search *s, const struct node *n,
                    enum reason why)
{
    const struct node *p = &t->node[n->parent];
    double score = score_of(t, s, n->id);
    if (why == LOOKS_FAST)
        return score;
    if (why == GREW_WELL)
        return n->batch == t->batch && p->visits > 0 ? p->value / p->visits : -1;
    return n->parent != ROOT && p->measured ? score_of(t, s, p->id) + 0.01 * score : -1;
}

/* The untried node that is most worth measuring; false: none. */
static bool take_best(struct tree *t, const struct search *s, struct batch *b, enum reason why)
{
    int best = -1;
    double most = -1;
    for (int i = 1; i < t->nodes; i++) {
        const struct node *n = &t->node[i];
        if (s->trial[n->id] != TRIAL_NONE || in_batch(b, n->id))
            continue;
        double w = worth(t, s, n, why);
        if (w > most) {
            most = w;
            best = i;
        }
    }
    if (best >= 0)
        take(b, s, t->node[best].id);
    return best >= 0;
}

static void take_grown(struct tree *t, const struct search *s, struct batch *b)
{
    for (bool some = true; some && b->n < b->want;) {
        some = false;
        for (int why = 0; why < REASONS; why++)
            some |= take_best(t, s, b, (enum reason)why);
    }
}

/* Where it began is measured early, in up to half of a batch: a prediction that is wrong about a
 * family is wrong about all of it. The first planted come first. */
static void take_starts(const struct tree *t, const struct search *s, struct batch *b)
{
    for (int i = 1; i < t->nodes && 2 * b->n < b->want; i++)
        if (t->node[i].parent == ROOT)
            take(b, s, t->node[i].id);
}

static void take_rest(const struct search *s, struct batch *b)
{
    for (int i = 0; i < s->advice->priorities && b->n < b->want; i++)
        take(b, s, s->advice->priority[i]);
    for (int32_t i = 0; i < space_size(s->space) && b->n < b->want; i++)
        take(b, s, i);
}

/* ---- asking about the next --------------------------------------------------------------------
 */

static void fill_lineage(const struct tree *t, const struct search *s, int node, struct lineage *l)
{
    for (int i = 0; i < LINEAGE; i++) {
        l->id[i] = node >= 0 ? t->node[node].id : -1;
        if (l->id[i] < 0) {
            node = -1;
            continue;
        }
        l->score[i] = score_of(t, s, l->id[i]);
        l->measured[i] = s->trial[l->id[i]] == TRIAL_MEASURED;
        node = t->node[node].parent;
    }
}

/* The nodes with the best standing that can still grow and were not asked about. */
static void want_moves(struct tree *t, const struct search *s)
{
    struct lineage l[MOVES_MOST];
    int n = 0;
    if (!s->mover || t->wants == WANTS_MOST)
        return;
    while (n < MOVES_MOST) {
        int best = -1;
        for (int i = 1; i < t->nodes; i++)
            if (!t->node[i].closed && t->node[i].wanted == 0 &&
                (best < 0 || score_of(t, s, t->node[i].id) > score_of(t, s, t->node[best].id)))
                best = i;
        if (best < 0)
            break;
        t->node[best].wanted = 1;
        fill_lineage(t, s, best, &l[n++]);
    }
    t->wants += n > 0;
    s->mover->want(s->mover->ctx, l, n);
}

static int mcts_propose(void *state, const struct search *s, int32_t *id, int n)
{
    struct tree *t = state;
    struct batch b = {id, 0, n};
    bool advised = s->advice->advised > 0 || s->mover;
    t->batch++;
    calibrate(t, s);
    learn(t, s);
    plant_all(t, s);
    for (int i = 0; i < s->firsts; i++)
        take(&b, s, s->first[i]);
    if (advised)
        trust_batch(&t->trust, s, n);
    take_advised(t, s, &b, trust_near);
    play_advice(t, s, &b);
    b.want -= s->advice->advised > 0 && t->trust.far_left > 0 && b.n < n; /* far ones are last */
    take_starts(t, s, &b);
    for (int i = 0; i < n * GROWTH && simulate(t, s); i++)
        ;
    take_grown(t, s, &b);
    b.want = n;
    take_advised(t, s, &b, trust_far);
    take_grown(t, s, &b);
    take_rest(s, &b);
    want_moves(t, s);
    return b.n;
}

const struct strategy strategy_mcts = {"mcts", mcts_open, mcts_propose, mcts_close};
