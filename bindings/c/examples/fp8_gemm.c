/* An FP8 GEMM from C: d = (a * sfa) @ (b * sfb).T with one scale per 1 x 128 block of a and per 128 x 128 block of b.
 *
 *   cc -std=c99 fp8_gemm.c $(pkg-config --cflags --libs deep_gemm) -o fp8_gemm
 *
 * It checks the result against a product in double, then makes a mistake on purpose to show what the library says about it.
 */
#include <deep_gemm/deep_gemm.h>

#include <stdio.h>

enum { M = 5, N = 192, K = 320, BLOCK = 128, K_BLOCKS = (K + BLOCK - 1) / BLOCK, N_BLOCKS = (N + BLOCK - 1) / BLOCK };

static uint8_t a[M][K], b[N][K];                       /* e4m3 codes */
static float sfa[M][K_BLOCKS], sfb[N_BLOCKS][K_BLOCKS]; /* scales */
static float d[M][N];

/* Some e4m3 codes and what they stand for. */
static const uint8_t codes[] = {0x30, 0x38, 0xb8, 0x40, 0x00, 0x3c, 0xc8};
static const double values[] = {0.5, 1.0, -1.0, 2.0, 0.0, 1.5, -4.0};
enum { COUNT = sizeof(codes) / sizeof(codes[0]) };

static dg_tensor matrix(void *data, dg_dtype dtype, int64_t *shape)
{
    dg_tensor t = {0};
    t.data = data;
    t.device.type = DG_CPU;
    t.ndim = 2;
    t.dtype = dtype;
    t.shape = shape; /* strides stay NULL: compact */
    return t;
}

static void fill(void)
{
    for (int i = 0; i < M; i++) {
        for (int k = 0; k < K; k++) a[i][k] = codes[(3 * i + k) % COUNT];
        for (int q = 0; q < K_BLOCKS; q++) sfa[i][q] = 0.25f * (float)(1 + i + q);
    }
    for (int j = 0; j < N; j++) {
        for (int k = 0; k < K; k++) b[j][k] = codes[(5 * j + k / 2) % COUNT];
    }
    for (int p = 0; p < N_BLOCKS; p++) {
        for (int q = 0; q < K_BLOCKS; q++) sfb[p][q] = 0.5f * (float)(1 + p + 2 * q);
    }
}

static double expected(int i, int j)
{
    double sum = 0.0;
    for (int k = 0; k < K; k++) {
        const double x = values[(3 * i + k) % COUNT] * (double)sfa[i][k / BLOCK];
        const double y = values[(5 * j + k / 2) % COUNT] * (double)sfb[j / BLOCK][k / BLOCK];
        sum += x * y;
    }
    return sum;
}

int main(void)
{
    int64_t shape_a[] = {M, K}, shape_sfa[] = {M, K_BLOCKS}, shape_b[] = {N, K}, shape_sfb[] = {N_BLOCKS, K_BLOCKS};
    int64_t shape_d[] = {M, N};
    const dg_dtype f8 = {DG_F8E4M3}, f32 = {DG_F32};
    dg_tensor ta = matrix(a, f8, shape_a), tsfa = matrix(sfa, f32, shape_sfa);
    dg_tensor tb = matrix(b, f8, shape_b), tsfb = matrix(sfb, f32, shape_sfb);
    dg_tensor td = matrix(d, f32, shape_d);

    fill();
    printf("deep_gemm %s\n", dg_version());

    /* NULL context: the defaults of the process. NULL options: the defaults of the schema. */
    dg_status status = dg_fp8_fp4_gemm_nt(NULL, &ta, &tsfa, &tb, &tsfb, &td, NULL);
    if (status != DG_OK) {
        printf("%s: %s\n", dg_status_name(status), dg_last_error());
        return 1;
    }
    double largest_error = 0.0, largest_value = 0.0;
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            const double want = expected(i, j), error = (double)d[i][j] - want;
            if (error > largest_error || -error > largest_error) largest_error = error < 0 ? -error : error;
            if (want > largest_value || -want > largest_value) largest_value = want < 0 ? -want : want;
        }
    }
    printf("d[%d, %d], largest |d| %g, largest error %g\n", M, N, largest_value, largest_error);
    if (!(largest_error <= 1e-6 * largest_value)) return 1;

    shape_b[1] = K - 1; /* the mistake */
    status = dg_fp8_fp4_gemm_nt(NULL, &ta, &tsfa, &tb, &tsfb, &td, NULL);
    printf("with a wrong shape: %s: %s\n", dg_status_name(status), dg_last_error());
    return status == DG_ERR_INVALID_ARGUMENT ? 0 : 1;
}
