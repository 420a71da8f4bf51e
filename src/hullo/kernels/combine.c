$DEFINITIONS
/* The kernels of `combine` for the CPU. hullo.kernels.c_codegen replaces lines of the form $PART by the statements of
   given bases; this file has the functions that these statements call, the loops, and the division of the work.

   Functions are branch-free, so that compilers vectorize the loops. Errors are a few units in the last place.
   Polynomials are near-minimax fits on the interval named beside them. NaN passes through comparisons of the form
   `x > most ? most : x`, but not through those of bits; c_codegen knows which functions make these. */

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

#define FAR 1e5f

/* POLYn(x, a, b, ..., c): the polynomial of n coefficients, the highest first */
#define POLY1(x, a) (a)
#define POLY2(x, a, ...) POLY1(x, (a) * x + __VA_ARGS__)
#define POLY3(x, a, ...) POLY2(x, (a) * x + __VA_ARGS__)
#define POLY4(x, a, ...) POLY3(x, (a) * x + __VA_ARGS__)
#define POLY5(x, a, ...) POLY4(x, (a) * x + __VA_ARGS__)
#define POLY6(x, a, ...) POLY5(x, (a) * x + __VA_ARGS__)
#define POLY7(x, a, ...) POLY6(x, (a) * x + __VA_ARGS__)
#define POLY8(x, a, ...) POLY7(x, (a) * x + __VA_ARGS__)
#define POLY9(x, a, ...) POLY8(x, (a) * x + __VA_ARGS__)

INLINE float f_where(int condition, float a, float b) { return condition ? a : b; }
INLINE float f_abs(float x) { return __builtin_fabsf(x); }
INLINE float f_sqrt(float x) { return __builtin_sqrtf(x); }
INLINE float f_square(float x) { return x * x; }
INLINE float f_step(float x) { return x > 0 ? 1.0f : 0.0f; }
INLINE float f_minimum(float x, float most) { return x > most ? most : x; }
INLINE float f_clamp(float x, float low, float high) { return f_minimum(x < low ? low : x, high); }
INLINE float f_divide(float a, float b) { return a / b; }

/* Of numbers that are not negative the bits are in the same order, and integers are compared in fewer instructions. */
INLINE float f_positive_part(float x) { const int32_t i = bits(x); return from_bits(i > 0 ? i : 0); }
INLINE float f_cap(float x, float most) { /* min(x, most) for x >= 0 */
    const uint32_t i = bits(x), m = bits(most);
    return from_bits(i < m ? i : m);
}

INLINE float f_exp(float x) { /* 0 below -87.3 */
    const float a = f_clamp(x, -87.6f, 89.0f), rounder = 12582912.0f;
    const float t = a * 1.44269504f + rounder, n = t - rounder;
    const float r = (a - n * 0.693147182f) + n * 1.90465421e-09f;
    /* 2 (exp(r) - 1 - r) / r^2 for |r| < 0.347 */
    const float p = POLY5(r, 0.00276291677f, 0.0167374479f, 0.0833367775f, 0.333330411f, 0.999999869f);
    return ((p * r + 2.0f) * r + 2.0f) * from_bits((bits(t) << 23) + (126u << 23)); /* 2^(n - 1), since 2^n may overflow; 0 for n = -126 */
}

/* size exp(-x) for x >= 0, size <= 1; 0 where it is below 1e-38 */
INLINE float decay(float x, float size) {
    const float a = f_cap(x, 104.0f), rounder = 12582912.0f;
    const float t = rounder - a * 1.44269504f, n = t - rounder, r = -a - n * 0.693147182f;
    /* (exp(r) - 1 - r) / r^2, |r| < 0.347 */
    const float p = POLY4(r, 0.00831250133f * size, 0.0418903316f * size, 0.166671154f * size, 0.499992303f * size);
    const int32_t i = bits((p * r + size) * r + size) + (bits(t) << 23);
    return from_bits(i > 0 ? i : 0);
}

INLINE float f_exp_minus(float x) { return decay(x, 1.0f); } /* for x >= 0 */

INLINE float f_normal_pdf(float x) { return decay(0.5f * (x * x), 0.39894228f); }

INLINE float f_normal_tail(float x) {
    const float a = f_cap(f_abs(x), 40.0f); /* p / q = tail / density for a < 14; beyond, the density is 0 */
    const float p = POLY5(a, 1.0f, 9.39570307f, 40.8480509f, 94.700178f, 103.722794f);
    const float q = POLY6(a, 1.0f, 9.39580795f, 41.8433467f, 104.185687f, 141.591875f, 82.7588144f);
    return f_normal_pdf(x) * p / q;
}

INLINE float expm1_near(float x) {
    /* (expm1(x) / x - 1) / x for |x| < 0.5 */
    const float p = POLY6(x, 0.000199621861f, 0.00139821969f, 0.00833318204f, 0.041665791f, 0.166666671f, 0.500000012f);
    return x + x * x * p;
}

INLINE float f_expm1(float x) { return f_abs(x) < 0.5f ? expm1_near(x) : f_exp(x) - 1.0f; }

/* exp(-|x|) is the same number in all functions that call it, and computed once. */
INLINE float f_exp_below(float x) { return x > 0 ? 1.0f : f_exp_minus(f_abs(x)); } /* exp(min(x, 0)) */

INLINE float f_expm1_below(float x) { /* expm1(min(x, 0)) */
    const float a = x > 0 ? 0.0f : x, e = f_exp_minus(f_abs(x));
    return a < -0.5f ? e - 1.0f : expm1_near(a);
}

INLINE float f_sigmoid(float x) {
    const float e = f_exp_minus(f_abs(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

INLINE float f_tanh_softplus(float x) { /* tanh(log(1 + exp(x))) */
    const float e = f_exp_minus(f_abs(x)), top = x < 0 ? e * (e + 2.0f) : (1.0f + e) + e;
    return top / (top + (x < 0 ? 2.0f : (e + e) * e));
}

INLINE float f_tanh(float x) {
    const float a = f_cap(f_abs(x), 9.02f), z = a * a; /* tanh(a) / a = p / q */
    const float p = POLY5(z, 1.0f, 1545.43648f, 262339.056f, 10045791.1f, 75082300.69631115f);
    const float q = POLY5(z, 58.2779539f, 24650.034f, 1942455.58f, 35073211.62349832f, 75082302.27096246f);
    return __builtin_copysignf(f_cap(a * p / q, 1.0f), x);
}

INLINE float f_erf(float x) {
    const float a = f_cap(f_abs(x), 3.93f), z = a * a; /* erf(a) / a = p / q */
    const float p = POLY6(z, 1.0f, 139.479832f, 1851.02894f, 25853.4417f, 93434.647f, 552610.424f);
    const float q = POLY6(z, 18.6116303f, 570.647834f, 7344.83853f, 55956.4458f, 246050.082f, 489738.247f);
    return __builtin_copysignf(f_cap(a * p / q, 1.0f), x);
}

INLINE float f_log1p(float x) { /* 1 + x = 2^n (1 + m) */
    const uint32_t n = (bits(1.0f + x) - 0x3f2aaaab) & 0xff800000;
    const float m = from_bits(bits(x) - n) + (from_bits(0x3f800000 - n) - 1.0f);
    /* (log1p(m) - m) / m^2 for |m| < 1/3 */
    const float p = POLY8(
        m, 0.140263772f, -0.153885598f, 0.139958036f, -0.164159575f,
        0.200111689f, -0.25007819f, 0.333331981f, -0.499999361f
    );
    const float y = (float)(int32_t)n * 8.2629583e-08f + ((p * m) * m + m);
    return x > -1 && x < INFINITY ? y : x == -1 ? -INFINITY : x > 0 ? x : NAN;
}

INLINE float f_log1p_exp_minus(float x) { /* log(1 + exp(-x)) for x >= 0 */
    const float e = f_exp_minus(x); /* log(1 + e) = 4 e p / q for 0 <= e <= 1 */
    const float p = (e + 7.12095061f) * e + 8.28609787f;
    const float q = ((e + 15.4811624f) * e + 45.0559127f) * e + 33.1443924f;
    return ((e + e) + (e + e)) * p / q;
}

INLINE float f_log_mean_exp_minus(float x) { /* log((1 + exp(-x)) / 2) for x >= 0 */
    const float a = f_cap(x, 18.0f); /* -a p / q */
    const float p = POLY6(a, 1.0f, 3.79365567f, 60.4656899f, 502.183691f, 1352.25162f, 10100.8385f);
    const float q = POLY7(a, 1.443824f, 5.37387784f, 91.0138524f, 644.433918f, 2943.73033f, 7754.84036f, 20201.6787f);
    return -a * p / q;
}

INLINE float f_asinh(float x, int careful) {
    const float size = f_abs(x), is_large = careful && size > 1e18f, root = f_sqrt(1.0f + x * x);
    const float half = 0.5f * size; /* asinh of large numbers is log(half) + log(4) */
    const float d = is_large ? 1.0f : 1.0f + root, b = is_large ? half : size * d + x * x; /* log(1 + b / d) */
    const uint32_t n = (bits(is_large ? half : size + root) - 0x3f2aaaab) & 0xff800000; /* 1 + b / d = 2^n (1 + m) */
    const float up = from_bits(bits(b) - n), down = from_bits(bits(d) - n); /* b and d over 2^n; n is 0 for small b */
    const float s = (up + (down - d)) / (up + (down + d)), z = s * s; /* m / (2 + m), at most 0.2 */
    const float p = POLY4(z, 0.304349218f, 0.399526734f, 0.666670484f, 2.0f); /* log((1 + s) / (1 - s)) / s */
    const float y = (float)(int32_t)n * 8.2629583e-08f + s * p;
    return __builtin_copysignf(!careful ? y : size == INFINITY ? size : is_large ? y + 1.38629436f : y, x);
}

INLINE float f_atan(float x) {
    const float size = f_abs(x), is_large = size > 1.0f, t = is_large ? 1.0f / size : size;
    const float z = t * t;
    /* (atan(t) / t - 1) / t^2 for 0 <= t <= 1 */
    const float p = POLY9(
        z, -0.00244703122f, 0.0137502843f, -0.0362701745f, 0.0628436094f,
        -0.0867317088f, 0.110379943f, -0.142791109f, 0.19999766f, -0.33333332f
    );
    const float y = t + t * z * p;
    return __builtin_copysignf(is_large ? 1.57079633f - y : y, x);
}

/* sin((n + shift) pi + r) = (-1)^n sin(r + shift pi), for |x| <= FAR, where the reduction is exact enough */
INLINE float wave(float x, float shift) {
    const float rounder = 12582912.0f, t = x * 0.318309886f - shift + rounder, n = t - rounder + shift;
    const float r = (x - n * 3.14159274f) + n * 8.74227766e-08f, z = r * r;
    /* (sin(r) / r - 1) / r^2 for |r| < 1.59 */
    const float p = POLY4(z, 2.60210327e-06f, -0.000198080112f, 0.00833304568f, -0.166666588f);
    return from_bits(bits(r + r * z * p) ^ bits(t) << 31);
}
#define f_sin(x) (careful && !(f_abs(x) <= FAR) ? sinf(x) : wave(x, 0.0f))
#define f_cos(x) (careful && !(f_abs(x) <= FAR) ? cosf(x) : -wave(x, 0.5f))

/* y = f(x), for a function f that does not pass NaN on */
#define keep_nan(x, y) (careful && (x) != (x) ? (x) : (y))

/* A tile is a row of at most TILE elements. Coefficient i of element j is c[i * width + j * by_column]: a number for
   the whole tile, or one per column. Functions of tiles return whether it has NaN or numbers beyond FAR, also as
   arguments of sin and cos: then results are right only if it is computed carefully, which takes longer. */
enum { TILE = 1024, TASK = 1 << 14, LARGE_TASK = 1 << 16 };
#define CHECK(x) { const int32_t i = bits(f_abs(x)); largest = i > largest ? i : largest; } /* NaN has the most bits */

INLINE int forward_tile(
    const real *restrict from, real *restrict to, long n, const float *restrict c, long width, int by_column,
    int careful
) {
    int32_t largest = 0;
    #pragma omp simd reduction(max:largest)
    for (long j = 0; j < n; j++) {
        const float x = widen(from[j]);
        CHECK(x)
        $VALUES
        $COMBINED
        to[j] = narrow(y);
    }
    return largest > (int32_t)bits(FAR);
}

INLINE int backward_tile(
    const real *restrict from, const real *restrict upstream, real *restrict to, long n, const float *restrict c,
    long width, int by_column, float *restrict sums, int careful
) {
    int32_t largest = 0;
    $ZERO
    $SIMD
    for (long j = 0; j < n; j++) {
        const float x = widen(from[j]), dy = widen(upstream[j]);
        CHECK(x)
        $VALUES
        $SLOPES
        $GRADIENT
        to[j] = narrow(dx);
        if (by_column) {
            $ADD_BY_COLUMN
        } else {
            $ADD
        }
    }
    if (!by_column) {
        $STORE
    }
    return largest > (int32_t)bits(FAR);
}

static void forward_row(const real *x, real *y, long n, const float *c, long width) {
    for (long j = 0; j < n; j += TILE) {
        const long m = n - j < TILE ? n - j : TILE;
        if (width ? forward_tile(x + j, y + j, m, c + j, width, 1, 0) : forward_tile(x + j, y + j, m, c, 1, 0, 0))
            width ? forward_tile(x + j, y + j, m, c + j, width, 1, 1) : forward_tile(x + j, y + j, m, c, 1, 0, 1);
    }
}

/* Add the sums of a row with the same coefficients everywhere to `sums`, one number per base. */
static void backward_row(const real *x, const real *dy, real *dx, long n, const float *c, double *sums) {
    for (long j = 0; j < n; j += TILE) {
        const long m = n - j < TILE ? n - j : TILE;
        float parts[BASES];
        if (backward_tile(x + j, dy + j, dx + j, m, c, 1, 0, parts, 0))
            backward_tile(x + j, dy + j, dx + j, m, c, 1, 0, parts, 1);
        for (int i = 0; i < BASES; i++) sums[i] += parts[i];
    }
}

/* Add the sums of a tile with coefficients per column to `sums`, TILE numbers per base. */
static void backward_columns(
    const real *from, const real *dy, real *dx, long n, const float *c, long width, float *sums
) {
    int32_t largest = 0; /* found before, since the tile must be added to the sums once */
    #pragma omp simd reduction(max:largest)
    for (long j = 0; j < n; j++) {
        const int careful = 0;
        const float x = widen(from[j]);
        CHECK(x)
        $CHECKS
    }
    if (largest > (int32_t)bits(FAR)) backward_tile(from, dy, dx, n, c, width, 1, sums, 1);
    else backward_tile(from, dy, dx, n, c, width, 1, sums, 0);
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

/* Compute out = the combination if dy is null; otherwise out = the gradient of x, and dc = the gradient of the
   coefficients, a row per group. Returns whether memory was insufficient. */
int run(
    Parallel parallel, unsigned threads, const real *x, const real *dy, const float *c, real *out, float *dc,
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
    if (dy && !(job.sums = calloc(places + groups * BASES, sizeof *job.sums))) {
        free(by_column);
        return 1;
    }
    if (parallel && threads > 1 && job.tasks > job.batch) parallel(work, &job, threads, 0);
    else work(&job);
    if (dy) {
        double *total = job.sums + places;
        for (long k = 0; k < places; k++) {
            const long base = job.width ? k / job.width % BASES : k % BASES;
            const long row = job.width ? k % job.width % columns / inner : k / BASES / job.parts % groups;
            total[row * BASES + base] += job.sums[k];
        }
        $SCALE_TOTALS
        for (long k = 0; k < groups * BASES; k++) dc[k] = total[k];
    }
    free(job.sums);
    free(by_column);
    return 0;
}
