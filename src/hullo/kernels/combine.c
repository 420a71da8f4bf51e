$DEFINITIONS
/* The kernels of `combine` for the CPU. hullo.kernels.c_codegen replaces lines of the form $PART by the statements of
   given bases; this file has the functions that these statements call, the loops, and the division of the work.

   Functions are branch-free, so that compilers vectorize the loops. Errors are a few units in the last place.
   Polynomials are near-minimax fits on the interval named beside them. NaN passes through comparisons of the form
   `x > most ? most : x`. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float from_bits(uint32_t i) { float x; memcpy(&x, &i, 4); return x; }
INLINE uint32_t bits(float x) { uint32_t i; memcpy(&i, &x, 4); return i; }

#if BFLOAT16
typedef uint16_t real;
INLINE float widen(real x) { return from_bits((uint32_t)x << 16); }
INLINE real narrow(float x) {
    const uint32_t i = bits(x);
    return x != x ? 0x7fc0 : (i + 0x7fff + (i >> 16 & 1)) >> 16;
}
#else
typedef float real;
INLINE float widen(real x) { return x; }
INLINE real narrow(float x) { return x; }
#endif

INLINE float f_where(int condition, float a, float b) { return condition ? a : b; }
INLINE float f_abs(float x) { return __builtin_fabsf(x); }
INLINE float f_sqrt(float x) { return __builtin_sqrtf(x); }
INLINE float f_square(float x) { return x * x; }
INLINE float f_step(float x) { return x > 0 ? 1.0f : 0.0f; }
INLINE float f_positive_part(float x) { return x < 0 ? 0.0f : x; }
INLINE float f_minimum(float x, float most) { return x > most ? most : x; }
INLINE float f_clamp(float x, float low, float high) { return f_minimum(x < low ? low : x, high); }
INLINE float f_divide(float a, float b) { return a / b; }

INLINE float f_exp(float x) { /* 0 below -87.3 */
    const float a = f_clamp(x, -87.6f, 89.0f), rounder = 12582912.0f;
    const float t = a * 1.44269504f + rounder, n = t - rounder;
    const float r = (a - n * 0.693147182f) + n * 1.90465421e-9f;
    float p = 0.002762916771036204f * r + 0.016737447887082666f; /* 2 (exp(r) - 1 - r) / r^2 for |r| < 0.347 */
    p = p * r + 0.08333677746632881f;
    p = p * r + 0.33333041146974063f;
    p = p * r + 0.9999998688772975f;
    p = (p * r + 2.0f) * r + 2.0f;
    return p * from_bits((bits(t) << 23) + (126u << 23)); /* 2^(n - 1), since 2^n may overflow; 0 for n = -126 */
}

INLINE float f_expm1(float x) {
    float p = 0.00019962186051430045f * x + 0.0013982196861872357f; /* (expm1(x) / x - 1) / x for |x| < 0.5 */
    p = p * x + 0.008333182040885928f;
    p = p * x + 0.04166579095964892f;
    p = p * x + 0.1666666713968562f;
    p = p * x + 0.5000000121691622f;
    return f_abs(x) < 0.5f ? x + x * x * p : f_exp(x) - 1.0f;
}

/* exp(-|x|) is the same number in all functions that call it, and computed once. */
INLINE float f_exp_below(float x) { return x > 0 ? 1.0f : f_exp(-f_abs(x)); }  /* exp(min(x, 0)) */

INLINE float f_expm1_below(float x) { /* expm1(min(x, 0)) */
    const float a = f_minimum(x, 0.0f), e = f_exp(-f_abs(x));
    float p = 0.00019962186051430045f * a + 0.0013982196861872357f; /* as in f_expm1 */
    p = p * a + 0.008333182040885928f;
    p = p * a + 0.04166579095964892f;
    p = p * a + 0.1666666713968562f;
    p = p * a + 0.5000000121691622f;
    return a < -0.5f ? e - 1.0f : a + a * a * p;
}

INLINE float f_sigmoid(float x) {
    const float e = f_exp(-f_abs(x)), r = 1.0f / (1.0f + e);
    return x < 0 ? e * r : r;
}

INLINE float f_tanh_softplus(float x) { /* tanh(log(1 + exp(x))) */
    const float e = f_exp(-f_abs(x));
    const float top = x < 0 ? e * (e + 2.0f) : 1.0f + 2.0f * e;
    return top / (top + (x < 0 ? 2.0f : 2.0f * e * e));
}

INLINE float f_tanh(float x) {
    const float a = f_minimum(f_abs(x), 9.02f), z = a * a; /* tanh(a) / a = p / q */
    float p = 1.3319075227258249e-08f * z + 2.0583483847979693e-05f;
    p = p * z + 0.0034940347185086966f;
    p = p * z + 0.13379718071586513f;
    p = p * z + 0.9999999790090668f;
    float q = 7.76202086219016e-07f * z + 0.00032830930994869886f;
    q = q * z + 0.025871073798342824f;
    q = q * z + 0.4671303331093571f;
    q = q * z + 1.0f;
    return __builtin_copysignf(f_minimum(a * p / q, 1.0f), x);
}

INLINE float f_erf(float x) {
    const float a = f_minimum(f_abs(x), 3.93f), z = a * a; /* erf(a) / a = p / q */
    float p = 2.041970320045568e-06f * z + 0.0002848083942020906f;
    p = p * z + 0.0037796041573993217f;
    p = p * z + 0.05279027056362245f;
    p = p * z + 0.19078372307053654f;
    p = p * z + 1.1283791453569636f;
    float q = 3.8004059491717065e-05f * z + 0.001165211303360323f;
    q = q * z + 0.014997427490273451f;
    q = q * z + 0.11425747660244034f;
    q = q * z + 0.5024103919301532f;
    q = q * z + 1.0f;
    return __builtin_copysignf(f_minimum(a * p / q, 1.0f), x);
}

INLINE float f_normal_pdf(float x) { return 0.3989422804014327f * f_exp(-0.5f * (x * x)); }

INLINE float f_normal_tail(float x) {
    const float t = 1.0f / (1.0f + 0.3f * f_abs(x)); /* the tail / exp(-x^2 / 2), to a relative error of 1.5e-7 */
    float p = 0.03567477866199849f * t - 0.15720310134854062f;
    p = p * t + 0.20635353761700867f;
    p = p * t - 0.05368367187791003f;
    p = p * t + 0.12856164046406915f;
    p = p * t + 0.09991348818754177f;
    p = p * t + 0.12075395661183527f;
    p = p * t + 0.11962929879506404f;
    return p * t * f_exp(-0.5f * (x * x));
}

INLINE float log1p_above(float x) { /* log(1 + x) for finite x > -1: 1 + x = 2^n (1 + m) */
    const uint32_t n = (bits(1.0f + x) - 0x3f2aaaab) & 0xff800000;
    const float m = from_bits(bits(x) - n) + (from_bits(0x3f800000 - n) - 1.0f);
    float p = 0.1402637719953251f * m - 0.15388559804222957f; /* (log1p(m) - m) / m^2 for |m| < 1/3 */
    p = p * m + 0.1399580357782794f;
    p = p * m - 0.16415957458660102f;
    p = p * m + 0.2001116885375107f;
    p = p * m - 0.25007819044644886f;
    p = p * m + 0.3333319813445641f;
    p = p * m - 0.49999936077170815f;
    return (float)(int32_t)n * 8.262958295e-8f + ((p * m) * m + m);
}

INLINE float f_log1p(float x) { return x < INFINITY ? log1p_above(x) : x; }

INLINE float f_asinh(float x) {
    const float size = f_abs(x), is_large = size > 1e18f, root = f_sqrt(1.0f + x * x);
    const float below = size + x * x / (1.0f + root);
    const float y = log1p_above(is_large ? size : below) + (is_large ? 0.693147181f : 0.0f);
    return __builtin_copysignf(size < INFINITY ? y : size, x);
}

INLINE float f_atan(float x) {
    const float size = f_abs(x), is_large = size > 1.0f, t = is_large ? 1.0f / size : size;
    const float z = t * t;
    float p = -0.0024470312243626427f * z + 0.013750284309966155f; /* (atan(t) / t - 1) / t^2 for 0 <= t <= 1 */
    p = p * z - 0.036270174464537785f;
    p = p * z + 0.0628436093572774f;
    p = p * z - 0.08673170882298392f;
    p = p * z + 0.11037994286183468f;
    p = p * z - 0.14279110916415386f;
    p = p * z + 0.19999765998614497f;
    p = p * z - 0.3333333195079894f;
    const float y = t + t * z * p;
    return __builtin_copysignf(is_large ? 1.57079633f - y : y, x);
}

/* sin((n + shift) pi + r) = (-1)^n sin(r + shift pi). NaN beyond FAR, where the reduction is not exact: then the loops
   run again, with the functions of the C library. */
#define FAR 1e5f
INLINE float wave(float x, float shift) {
    const float rounder = 12582912.0f, t = x * 0.318309886f - shift + rounder, n = t - rounder + shift;
    const float r = ((x - n * 3.14159274f) + n * 8.74227766e-8f) + n * 3.43e-15f, z = r * r;
    float p = 2.6021032734434268e-06f * z - 0.00019808011219072332f; /* (sin(r) / r - 1) / r^2 for |r| < 1.59 */
    p = p * z + 0.00833304567546444f;
    p = p * z - 0.1666665880380724f;
    const float y = from_bits(bits(r + r * z * p) ^ bits(t) << 31);
    return f_abs(x) > FAR ? NAN : y;
}
#define f_sin(x) (exact ? sinf(x) : wave(x, 0.0f))
#define f_cos(x) (exact ? cosf(x) : -wave(x, 0.5f))

/* A tile is a row of at most TILE elements. Coefficient i of element j is c[i * width + j * by_column]: a number for
   the whole tile, or one per column. Both functions return whether a result is NaN. */
enum { TILE = 1024, TASK = 1 << 14, LARGE_TASK = 1 << 16 };

INLINE int forward_tile(
    const real *restrict from, real *restrict to, long n, const float *restrict c, long width, int by_column, int exact
) {
    int has_nan = 0;
    #pragma omp simd reduction(|:has_nan)
    for (long j = 0; j < n; j++) {
        const float x = widen(from[j]);
        $VALUES
        $COMBINED
        to[j] = narrow(y);
        has_nan |= y != y;
    }
    return has_nan;
}

INLINE int backward_tile(
    const real *restrict from, const real *restrict upstream, real *restrict to, long n, const float *restrict c,
    long width, int by_column, float *restrict sums, int exact
) {
    int has_nan = 0;
    $ZERO
    $SIMD
    for (long j = 0; j < n; j++) {
        const float x = widen(from[j]), dy = widen(upstream[j]);
        $VALUES
        $SLOPES
        $GRADIENT
        to[j] = narrow(dx);
        has_nan |= dx != dx;
        if (by_column) {
            $ADD_BY_COLUMN
        } else {
            $ADD
        }
    }
    if (!by_column) {
        $STORE
    }
    return has_nan;
}

static void forward_row(const real *x, real *y, long n, const float *c, long width) {
    for (long j = 0; j < n; j += TILE) {
        const long m = n - j < TILE ? n - j : TILE;
        if (width ? forward_tile(x + j, y + j, m, c + j, width, 1, 0) : forward_tile(x + j, y + j, m, c, 1, 0, 0))
            if (HAS_WAVES)
                width ? forward_tile(x + j, y + j, m, c + j, width, 1, 1) : forward_tile(x + j, y + j, m, c, 1, 0, 1);
    }
}

/* Add the sums of a row with the same coefficients everywhere to `sums`, one number per base. */
static void backward_row(const real *x, const real *dy, real *dx, long n, const float *c, double *sums) {
    for (long j = 0; j < n; j += TILE) {
        const long m = n - j < TILE ? n - j : TILE;
        float parts[BASES];
        int has_nan = backward_tile(x + j, dy + j, dx + j, m, c, 1, 0, parts, 0);
        for (int i = 0; i < BASES; i++) has_nan |= parts[i] != parts[i];
        if (HAS_WAVES && has_nan) backward_tile(x + j, dy + j, dx + j, m, c, 1, 0, parts, 1);
        for (int i = 0; i < BASES; i++) sums[i] += parts[i];
    }
}

/* Add the sums of a tile with coefficients per column to `sums`, TILE numbers per base. */
static void backward_columns(
    const real *x, const real *dy, real *dx, long n, const float *c, long width, float *sums
) {
    float before[HAS_WAVES ? BASES * TILE : 1];
    if (HAS_WAVES) memcpy(before, sums, sizeof before);
    int has_nan = backward_tile(x, dy, dx, n, c, width, 1, sums, 0);
    if (!HAS_WAVES) return;
    for (long k = 0; k < BASES * TILE; k++) has_nan |= sums[k] != sums[k];
    if (!has_nan) return;
    memcpy(sums, before, sizeof before);
    backward_tile(x, dy, dx, n, c, width, 1, sums, 1);
}

/* A tensor of shape (outer, groups, inner) in memory order, count elements in all. Threads take tasks in turn, and the
   sums of every task have a place of their own, so that results do not depend on the number of threads.

   Long runs: a task is a part of a run of `inner` elements, which have the same coefficients; `batch` tasks are taken
   at once. Short runs: the tensor is a matrix of `width` columns, a multiple of groups * inner, each with its own
   coefficients; a task is a block of rows of at most TILE columns. */
typedef struct {
    const real *x, *dy;
    real *out;
    const float *c;
    double *sums;
    long count, groups, inner, width, parts, rows, tasks, batch, next;
} Job;

static void run_task(const Job *job, long task) {
    if (!job->width) {
        const long run = task / job->parts, at = task % job->parts * TASK, start = run * job->inner + at;
        const long n = job->inner - at < TASK ? job->inner - at : TASK;
        const float *c = job->c + run % job->groups * BASES;
        if (job->dy) backward_row(job->x + start, job->dy + start, job->out + start, n, c, job->sums + task * BASES);
        else forward_row(job->x + start, job->out + start, n, c, 0);
        return;
    }
    const long block = task / job->parts, column = task % job->parts * TILE;
    const long columns = job->width - column < TILE ? job->width - column : TILE;
    float sums[BASES * TILE];
    if (job->dy) memset(sums, 0, sizeof sums);
    for (long row = block * job->rows; row < (block + 1) * job->rows; row++) {
        const long start = row * job->width + column, rest = job->count - start;
        const long n = rest < columns ? rest : columns;
        if (n <= 0) break;
        if (job->dy) {
            const real *dy = job->dy + start;
            backward_columns(job->x + start, dy, job->out + start, n, job->c + column, job->width, sums);
        } else
            forward_row(job->x + start, job->out + start, n, job->c + column, job->width);
    }
    if (job->dy)
        for (long i = 0; i < BASES; i++)
            for (long j = 0; j < columns; j++)
                job->sums[(block * BASES + i) * job->width + column + j] = sums[i * TILE + j];
}

static void work(void *argument) {
    Job *job = argument;
    for (;;) {
        const long first = __atomic_fetch_add(&job->next, job->batch, __ATOMIC_RELAXED);
        if (first >= job->tasks) return;
        const long end = first + job->batch < job->tasks ? first + job->batch : job->tasks;
        for (long task = first; task < end; task++) run_task(job, task);
    }
}

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel of an OpenMP runtime */

/* Compute out = the combination if dy is null; otherwise out = the gradient of x, and total = the gradient of the
   coefficients, a row per group. Returns whether memory was insufficient. */
int run(
    Parallel parallel, unsigned threads, const real *x, const real *dy, const float *c, real *out, double *total,
    long outer, long groups, long inner
) {
    Job job = {.x = x, .dy = dy, .out = out, .c = c, .count = outer * groups * inner, .groups = groups, .inner = inner};
    const long columns = groups * inner;
    float *by_column = NULL;
    long places;
    if (groups > 1 && inner < TILE / 2) {
        job.width = columns * (columns < TILE / 2 ? TILE / columns : 1);
        job.parts = (job.width + TILE - 1) / TILE;
        job.rows = job.width < TILE ? LARGE_TASK / job.width : LARGE_TASK / TILE;
        const long blocks = ((job.count + job.width - 1) / job.width + job.rows - 1) / job.rows;
        job.tasks = blocks * job.parts;
        job.batch = 1;
        places = blocks * BASES * job.width;
        by_column = malloc(BASES * job.width * sizeof *by_column);
        if (!by_column) return 1;
        for (long i = 0; i < BASES; i++)
            for (long j = 0; j < job.width; j++) by_column[i * job.width + j] = c[j % columns / inner * BASES + i];
        job.c = by_column;
    } else {
        job.parts = (inner + TASK - 1) / TASK;
        job.tasks = outer * groups * job.parts;
        job.batch = inner < TASK ? TASK / inner : 1;
        places = job.tasks * BASES;
    }
    if (dy && !(job.sums = calloc(places, sizeof *job.sums))) {
        free(by_column);
        return 1;
    }
    if (parallel && threads > 1 && job.tasks > job.batch) parallel(work, &job, threads, 0);
    else work(&job);
    if (dy) {
        for (long k = 0; k < places; k++) {
            const long base = job.width ? k / job.width % BASES : k % BASES;
            const long row = job.width ? k % job.width % columns / inner : k / BASES / job.parts % groups;
            total[row * BASES + base] += job.sums[k];
        }
        $SCALE_TOTALS
    }
    free(job.sums);
    free(by_column);
    return 0;
}
