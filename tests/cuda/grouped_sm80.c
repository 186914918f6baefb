/* Grouped CUDA GEMMs, dg_gemm_sm80 with groups, against the formula of ops/gemm.h in double: every kind of layout, all operand types,
 * ragged and empty groups, layouts that lie; then graph capture with layouts that change, and the same bits every time.
 *
 * What belongs to no group holds NaN in a. All of d that no group writes, its rows of padding and what is between and around them, must
 * stay as it was. Buffers have the exact size that the strides need, so compute-sanitizer sees any read beyond.
 */
#include "check.h"
#include "gemm_test.h"

enum { most_groups = 70 };

struct setup {
    enum dg_gemm_grouping kind;
    int64_t groups, alignment;
    int64_t sizes[most_groups];     /* rows or k of each; INDEX: not used */
    int64_t m, n, k;                /* m of PSUM, k of K and PSUM_K follow from sizes */
    bool is_last_cut;               /* INDEX, PSUM: m is not a multiple of the alignment */
    enum dg_gemm_type type[2];
    bool is_transposed[2], is_odd[2];
    enum dg_gemm_scale_type scale[2];
    int64_t gran_mn[2], gran_k;
    enum dg_gemm_type d_type;
    bool has_c, is_c_d, is_d_odd;
    int32_t num_sms;
    int64_t expected_rows;
};

struct instance {
    struct setup setup;
    struct dg_gemm_args host, device;
    struct buffer operand[2], scale[2], layout, c, d;
    int64_t d_offset; /* bytes of guard before d */
};

static bool are_of_k(enum dg_gemm_grouping kind)
{
    return kind == DG_GROUPS_K || kind == DG_GROUPS_PSUM_K;
}

/* Whether groups are matrices of their own in a and d. */
static bool are_apart(enum dg_gemm_grouping kind)
{
    return kind == DG_GROUPS_WHOLE || kind == DG_GROUPS_MASKED;
}

static bool is_psum(enum dg_gemm_grouping kind)
{
    return kind == DG_GROUPS_PSUM || kind == DG_GROUPS_PADDED_PSUM || kind == DG_GROUPS_PSUM_K;
}

static void describe(const struct setup *s)
{
    static const char *const kinds[] = {"none", "whole", "masked", "index", "psum", "padded_psum", "k", "psum_k"};
    static const char *const types[] = {"bf16", "f8", "f4", "f32"};
    static const char *const scales[] = {"none", "f32", "ue8m0"};
    printf("  %s groups=%lld alignment=%lld m=%lld n=%lld k=%lld num_sms=%d expected_rows=%lld d=%s d_odd=%d c=%d c_is_d=%d gran_k=%lld\n",
           kinds[s->kind], (long long)s->groups, (long long)s->alignment, (long long)s->m, (long long)s->n, (long long)s->k, s->num_sms,
           (long long)s->expected_rows, types[s->d_type], s->is_d_odd, s->has_c, s->is_c_d, (long long)s->gran_k);
    for (int x = 0; x < 2; ++x) {
        printf("  %c: %s, scale %s of %lld rows, transposed=%d odd=%d\n", "ab"[x], types[s->type[x]], scales[s->scale[x]],
               (long long)s->gran_mn[x], s->is_transposed[x], s->is_odd[x]);
    }
    printf("  sizes:");
    for (int64_t g = 0; g < s->groups; ++g) {
        printf(" %lld", (long long)s->sizes[g]);
    }
    printf("\n");
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

static int64_t entry(const struct instance *t, int64_t i)
{
    return ((const int32_t *)t->layout.host)[i * t->host.groups.layout_stride];
}

static void set_entry(const struct instance *t, int64_t i, int64_t value)
{
    ((int32_t *)t->layout.host)[i * t->host.groups.layout_stride] = (int32_t)value;
}

static int64_t layout_entries(const struct setup *s)
{
    return s->kind == DG_GROUPS_WHOLE ? 0 : s->kind == DG_GROUPS_INDEX ? s->m : s->groups;
}

/* Where psum groups begin and end; returns the end of the last. */
static int64_t psum_end(const struct setup *s, int64_t group)
{
    int64_t end = 0;
    for (int64_t g = 0; g <= group; ++g) {
        end = round_up(end, s->alignment) + s->sizes[g];
    }
    return end;
}

/* Sizes along m or k that the layout needs in all. */
static void complete_setup(struct setup *s)
{
    int64_t all = 0;
    for (int64_t g = 0; g < s->groups; ++g) {
        all += s->sizes[g];
    }
    if (is_psum(s->kind)) {
        all = s->groups > 0 ? psum_end(s, s->groups - 1) : 0;
        all = s->is_last_cut ? all : round_up(all, s->alignment);
    }
    if (are_of_k(s->kind)) {
        s->k = all;
    } else if (is_psum(s->kind)) {
        s->m = all > 0 ? all : 1;
    }
}

static void fill_layout(const struct instance *t)
{
    const struct setup *s = &t->setup;
    memset(t->layout.host, 0x7f, t->layout.bytes);
    if (s->kind == DG_GROUPS_INDEX) {
        for (int64_t first = 0; first < s->m; first += s->alignment) {
            const int64_t group = random_below(s->groups + 1) - 1;
            for (int64_t i = first; i < s->m && i < first + s->alignment; ++i) {
                set_entry(t, i, i > first && random_below(4) == 0 ? -1 : group);
            }
        }
        return;
    }
    for (int64_t g = 0; g < layout_entries(s); ++g) {
        set_entry(t, g, is_psum(s->kind) ? psum_end(s, g) : s->sizes[g]);
    }
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(enum dg_gemm_type type, int64_t elements)
{
    return type == DG_GEMM_F32 ? elements * 4 : type == DG_GEMM_BF16 ? elements * 2 : type == DG_GEMM_F8E4M3 ? elements : (elements + 1) / 2;
}

/* Strides of an operand of `count` matrices, and its buffer. *group_stride: from one to the next. */
static struct buffer make_operand(struct dg_gemm_operand *x, int64_t *group_stride, const struct setup *s, int which, int64_t rows, int64_t count)
{
    const int64_t k = s->k, odd = s->is_odd[which] ? s->type[which] == DG_GEMM_F4E2M1 ? 2 : 1 : 0;
    const int64_t inner = s->is_transposed[which] ? rows : k, outer = s->is_transposed[which] ? k : rows;
    const int64_t pitch = round_up(inner, 32) + odd;
    x->type = s->type[which];
    x->stride_mn = s->is_transposed[which] ? 1 : pitch;
    x->stride_k = s->is_transposed[which] ? pitch : 1;
    *group_stride = count > 1 ? pitch * outer + odd : 0;
    return make_buffer(bytes_of(x->type, (count - 1) * *group_stride + pitch * (outer - 1) + inner));
}

/* Words of scales along k: of all groups where those have k of their own. */
static int64_t scale_words(const struct setup *s, enum dg_gemm_scale_type type)
{
    int64_t words = 0;
    for (int64_t g = 0; g < (are_of_k(s->kind) ? s->groups : 1); ++g) {
        const int64_t blocks = ((are_of_k(s->kind) ? s->sizes[g] : s->k) + s->gran_k - 1) / s->gran_k;
        words += type == DG_SCALE_UE8M0 ? (blocks + 3) / 4 : blocks;
    }
    return words;
}

static struct buffer make_scale(struct dg_gemm_scale *x, int64_t *group_stride, int64_t *words, const struct setup *s, int which, int64_t rows,
                                int64_t count)
{
    *x = (struct dg_gemm_scale){.type = s->scale[which], .gran_mn = s->gran_mn[which], .gran_k = s->gran_k};
    const int64_t blocks = (rows + x->gran_mn - 1) / x->gran_mn;
    *words = x->type == DG_SCALE_NONE ? 0 : scale_words(s, x->type);
    x->stride_mn = s->is_odd[which] ? *words : 1;
    x->stride_k = s->is_odd[which] ? 1 : blocks;
    *group_stride = count > 1 ? blocks * *words : 0;
    return make_buffer(count * blocks * *words * 4);
}

/* NaN, where the type has it, in those rows of a that `is_used` leaves out, and in their scales. */
static void spoil_rows(const struct instance *t, int64_t group, const bool *is_used)
{
    const struct dg_gemm_operand *a = &t->host.a;
    const struct dg_gemm_scale *sfa = &t->host.sfa;
    for (int64_t i = 0; i < t->setup.m; ++i) {
        for (int64_t k = 0; k < t->setup.k && !is_used[i]; ++k) {
            const int64_t index = group * t->host.groups.a_stride + i * a->stride_mn + k * a->stride_k;
            if (a->type == DG_GEMM_BF16) {
                ((uint16_t *)t->operand[0].host)[index] = 0x7fc0;
            } else if (a->type == DG_GEMM_F8E4M3) {
                t->operand[0].host[index] = 0x7f;
            }
        }
        for (int64_t word = 0; word < scale_words(&t->setup, sfa->type) && !is_used[i] && sfa->type != DG_SCALE_NONE && sfa->gran_mn == 1; ++word) {
            memset(t->scale[0].host + 4 * (group * t->host.groups.sfa_stride + i * sfa->stride_mn + word * sfa->stride_k), 0xff, 4);
        }
    }
}

/* ---- the groups, one by one -------------------------------------------------------------------------------------- */

/* A GEMM on the host; its rows are [begin, end) of a and d. */
struct part {
    struct dg_gemm_args args;
    int64_t begin, end;
};

static const void *moved(const void *data, enum dg_gemm_type type, int64_t elements)
{
    return (const unsigned char *)data + (type == DG_GEMM_F4E2M1 ? elements / 2 : bytes_of(type, elements));
}

static struct part part_of(const struct instance *t, int64_t group, int64_t begin, int64_t end)
{
    struct part part = {t->host, begin, end};
    struct dg_gemm_args *args = &part.args;
    const struct dg_gemm_groups *groups = &t->host.groups;
    int64_t a_step = group * groups->a_stride, b_step = group * groups->b_stride;
    int64_t sfa_step = group * groups->sfa_stride, sfb_step = group * groups->sfb_stride;
    if (are_of_k(t->setup.kind)) {
        struct setup before = t->setup;
        before.groups = group;
        before.is_last_cut = false;
        complete_setup(&before);
        const int64_t k_begin = before.k;
        args->k = t->setup.sizes[group];
        a_step = k_begin * args->a.stride_k;
        b_step = k_begin * args->b.stride_k;
        sfa_step = args->sfa.type == DG_SCALE_NONE ? 0 : scale_words(&before, args->sfa.type) * args->sfa.stride_k;
        sfb_step = args->sfb.type == DG_SCALE_NONE ? 0 : scale_words(&before, args->sfb.type) * args->sfb.stride_k;
    }
    args->a.data = moved(args->a.data, args->a.type, a_step);
    args->b.data = moved(args->b.data, args->b.type, b_step);
    args->sfa.data = (const unsigned char *)args->sfa.data + 4 * sfa_step;
    args->sfb.data = (const unsigned char *)args->sfb.data + 4 * sfb_step;
    args->d = (unsigned char *)args->d + bytes_of(args->d_type, group * groups->d_stride);
    if (args->c) {
        args->c = moved(args->c, args->d_type, group * groups->c_stride);
    }
    return part;
}

/* The i-th part of the problem; false: there are no more. Of INDEX, one for each tile; a part of no group is empty. */
static bool get_part(const struct instance *t, int64_t i, struct part *part)
{
    const struct setup *s = &t->setup;
    if (s->kind == DG_GROUPS_INDEX) {
        const int64_t begin = i * s->alignment, end = begin + s->alignment < s->m ? begin + s->alignment : s->m;
        if (begin >= s->m) {
            return false;
        }
        const int64_t group = entry(t, begin);
        *part = part_of(t, group < 0 ? 0 : group, begin, group < 0 ? begin : end);
        return true;
    }
    if (i >= s->groups) {
        return false;
    }
    const bool has_rows = s->kind == DG_GROUPS_PSUM || s->kind == DG_GROUPS_PADDED_PSUM;
    const int64_t begin = has_rows && i > 0 ? round_up(psum_end(s, i - 1), s->alignment) : 0;
    *part = part_of(t, i, begin, has_rows || s->kind == DG_GROUPS_MASKED ? begin + s->sizes[i] : s->m);
    return true;
}

/* ---- one problem ------------------------------------------------------------------------------------------------- */

static void fill_inputs(struct instance *t)
{
    const struct setup *s = &t->setup;
    fill_layout(t);
    for (int x = 0; x < 2; ++x) {
        fill_operand(&t->operand[x], s->type[x], false);
        fill_scale(&t->scale[x], s->scale[x], false);
    }
    bool *is_used = calloc((size_t)(s->m + 1), sizeof *is_used);
    struct part part;
    for (int64_t i = 0; get_part(t, i, &part) && !are_of_k(s->kind); ++i) {
        for (int64_t row = part.begin; row < part.end; ++row) {
            is_used[row] = true;
        }
        if (are_apart(s->kind)) {
            spoil_rows(t, i, is_used);
            memset(is_used, 0, (size_t)s->m);
        }
    }
    if (!are_apart(s->kind) && !are_of_k(s->kind)) {
        spoil_rows(t, 0, is_used);
    }
    free(is_used);
    memset(t->d.host, guard_byte, t->d.bytes);
    struct buffer *c = s->is_c_d ? &t->d : &t->c;
    const size_t begin = s->is_c_d ? (size_t)t->d_offset : 0;
    for (size_t i = begin; s->has_c && i + 3 < c->bytes - begin; i += 4) {
        const uint32_t bits = s->d_type == DG_GEMM_F32 ? 0x42000000u + random_bits() % 0x1000000u : (0x4200u + random_bits() % 0x100u) * 0x10001u;
        memcpy(c->host + i, &bits, 4);
    }
}

static void place_args(struct dg_gemm_args *args, const struct instance *t, bool is_device)
{
    struct dg_gemm_operand *operands[2] = {&args->a, &args->b};
    struct dg_gemm_scale *scales[2] = {&args->sfa, &args->sfb};
    for (int x = 0; x < 2; ++x) {
        operands[x]->data = is_device ? t->operand[x].device : t->operand[x].host;
        scales[x]->data = is_device ? t->scale[x].device : t->scale[x].host;
    }
    args->groups.layout = (const void *)(is_device ? t->layout.device : t->layout.host);
    args->d = (is_device ? t->d.device : t->d.host) + t->d_offset;
    if (t->setup.has_c) {
        args->c = t->setup.is_c_d ? args->d : is_device ? t->c.device : t->c.host;
    }
}

static struct instance make_instance(const struct setup *setup)
{
    struct instance t;
    memset(&t, 0, sizeof t);
    t.setup = *setup;
    complete_setup(&t.setup);
    const struct setup *s = &t.setup;
    struct dg_gemm_args *args = &t.host;
    struct dg_gemm_groups *groups = &args->groups;
    const int64_t a_count = are_apart(s->kind) ? s->groups : 1, b_count = are_of_k(s->kind) ? 1 : s->groups;
    const int64_t d_count = are_apart(s->kind) || are_of_k(s->kind) ? s->groups : 1;
    args->m = s->m;
    args->n = s->n;
    args->k = s->k;
    t.operand[0] = make_operand(&args->a, &groups->a_stride, s, 0, s->m, a_count);
    t.operand[1] = make_operand(&args->b, &groups->b_stride, s, 1, s->n, b_count);
    t.scale[0] = make_scale(&args->sfa, &groups->sfa_stride, &groups->sfa_words, s, 0, s->m, a_count);
    t.scale[1] = make_scale(&args->sfb, &groups->sfb_stride, &groups->sfb_words, s, 1, s->n, b_count);

    groups->kind = s->kind;
    groups->count = s->groups;
    groups->layout_stride = 1 + random_below(2);
    groups->alignment = s->alignment;
    groups->expected_rows = s->expected_rows;
    const int64_t entries = layout_entries(s);
    t.layout = make_buffer(entries > 0 ? ((entries - 1) * groups->layout_stride + 1) * 4 : 0);

    args->d_type = s->d_type;
    args->d_stride_n = 1;
    args->d_stride_m = s->is_d_odd ? s->n + 3 : round_up(s->n, 8);
    groups->d_stride = d_count > 1 ? s->m * args->d_stride_m + (s->is_d_odd ? 1 : 8) : 0;
    t.d_offset = guard_bytes + (s->is_d_odd ? bytes_of(s->d_type, 1) : 0);
    t.d = make_buffer(2 * t.d_offset + bytes_of(s->d_type, round_up((d_count - 1) * groups->d_stride + s->m * args->d_stride_m, 4)));
    args->c_stride_m = s->is_c_d ? args->d_stride_m : 1;
    args->c_stride_n = s->is_c_d ? 1 : s->m;
    groups->c_stride = d_count == 1 ? 0 : s->is_c_d ? groups->d_stride : s->m * s->n;
    t.c = make_buffer(bytes_of(s->d_type, round_up(d_count * s->m * s->n, 2)));
    args->exec.num_threads = 1;
    args->exec.num_sms = s->num_sms;

    t.device = t.host;
    place_args(&t.host, &t, false);
    place_args(&t.device, &t, true);
    fill_inputs(&t);
    return t;
}

static void free_instance(struct instance *t)
{
    struct buffer *buffers[] = {&t->operand[0], &t->operand[1], &t->scale[0], &t->scale[1], &t->layout, &t->c, &t->d};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; ++i) {
        free_buffer(buffers[i]);
    }
}

static void upload_inputs(const struct instance *t, cudaStream_t stream)
{
    const struct buffer *buffers[] = {&t->operand[0], &t->operand[1], &t->scale[0], &t->scale[1], &t->layout, &t->c, &t->d};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; ++i) {
        upload(buffers[i], stream);
    }
}

/* Checks a row of d, and puts what was there before into `untouched`. */
static int64_t wrong_in_row(const struct instance *t, const struct part *part, int64_t i, bool is_padding, const unsigned char *result,
                            unsigned char *untouched)
{
    const struct dg_gemm_args *args = &part->args;
    const int64_t d_begin = (const unsigned char *)args->d - t->d.host;
    int64_t wrong = 0;
    for (int64_t j = 0; j < args->n; ++j) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < args->k && !is_padding; ++k) {
            const double term = operand_at(&args->a, i, k) * scale_at(&args->sfa, i, k) * operand_at(&args->b, j, k) * scale_at(&args->sfb, j, k);
            sum += term;
            size += fabs(term);
        }
        if (args->c) {
            const double c = output_at(args->d_type, args->c, i * args->c_stride_m + j * args->c_stride_n);
            sum += c;
            size += fabs(c);
        }
        const int64_t index = i * args->d_stride_m + j, place = d_begin + bytes_of(args->d_type, index);
        const double got = output_at(args->d_type, result + d_begin, index);
        memcpy(untouched + place, t->d.host + place, (size_t)bytes_of(args->d_type, 1));
        if (!is_close(args->d_type, got, sum, size) && wrong++ == 0) {
            printf("  d[%lld, %lld] = %.9g, expected %.9g (sum of |terms| %.9g)\n", (long long)i, (long long)j, got, sum, size);
        }
    }
    return wrong;
}

/* Compares what the device wrote, `result`, with the formula; t->d.host still has what was there before. */
static bool is_right(const struct instance *t, const unsigned char *result)
{
    const struct setup *s = &t->setup;
    unsigned char *untouched = malloc(t->d.bytes);
    memcpy(untouched, result, t->d.bytes);
    int64_t wrong = 0;
    struct part part;
    for (int64_t p = 0; get_part(t, p, &part) && wrong < 3; ++p) {
        const int64_t padded_end = s->kind == DG_GROUPS_PADDED_PSUM ? round_up(part.end, s->alignment) : part.end;
        for (int64_t i = part.begin; i < padded_end && i < s->m && wrong < 3; ++i) {
            wrong += wrong_in_row(t, &part, i, i >= part.end, result, untouched);
        }
    }
    const bool is_rest_intact = wrong > 0 || memcmp(untouched, t->d.host, t->d.bytes) == 0;
    if (!is_rest_intact) {
        printf("  memory that no group has was written\n");
    }
    free(untouched);
    return wrong == 0 && is_rest_intact;
}

static void run_once(struct instance *t, unsigned char *result, cudaStream_t stream)
{
    upload(&t->d, stream); /* c may be d */
    const int error = run(&t->device);
    if (!CHECK_INT(error, 0)) {
        printf("  %s\n", dg_cuda_error_text(error));
    }
    must(cudaMemcpyAsync(result, t->d.device, t->d.bytes, cudaMemcpyDeviceToHost, stream), "download");
    must(cudaStreamSynchronize(stream), "run");
}

static void check_setup(const struct setup *setup, int runs, cudaStream_t stream)
{
    struct instance t = make_instance(setup);
    t.device.exec.stream = stream;
    upload_inputs(&t, stream);
    CHECK(dg_gemm_sm80_can_run(&t.device));
    unsigned char *result = malloc(t.d.bytes), *again = malloc(t.d.bytes);
    run_once(&t, result, stream);
    bool is_good = CHECK(is_right(&t, result));
    for (int i = 1; i < runs && is_good; ++i) {
        run_once(&t, again, stream);
        is_good = CHECK(memcmp(result, again, t.d.bytes) == 0);
    }
    if (!is_good) {
        describe(&t.setup);
    }
    free(result);
    free(again);
    free_instance(&t);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static struct setup random_setup(enum dg_gemm_grouping kind)
{
    static const int64_t heights[] = {1, 7, 33, 100, 128, 129, 200}, depths[] = {1, 16, 64, 100, 128, 256, 300};
    static const int64_t widths[] = {1, 8, 31, 64, 100, 129}, group_counts[] = {1, 2, 3, 5, 33, most_groups};
    static const int64_t alignments[] = {128, 128, 32, 8, 40, 224}, grans_k[] = {128, 128, 32, 64, 96, 100};
    struct setup s;
    memset(&s, 0, sizeof s);
    s.kind = kind;
    s.groups = pick(group_counts, random_below(4) ? 4 : 6);
    s.alignment = kind == DG_GROUPS_K ? 1 : pick(alignments, 6);
    s.m = pick(heights, kind == DG_GROUPS_MASKED && s.groups > 5 ? 4 : 7);
    s.n = pick(widths, 6);
    s.k = pick(depths, 7);
    s.is_last_cut = random_below(2);
    const int64_t most = are_of_k(kind) ? 300 : kind == DG_GROUPS_MASKED ? s.m : s.groups > 5 ? 20 : 300;
    for (int64_t g = 0; g < s.groups; ++g) {
        s.sizes[g] = random_below(3) ? random_below(most + 1) : 0;
    }
    if (kind == DG_GROUPS_INDEX) {
        s.m = s.alignment * (1 + random_below(5)) - (s.is_last_cut ? random_below(s.alignment) : 0);
    }
    const bool is_bf16 = random_below(3) == 0;
    for (int x = 0; x < 2; ++x) {
        s.type[x] = is_bf16 ? DG_GEMM_BF16 : random_below(3) || are_of_k(kind) ? DG_GEMM_F8E4M3 : DG_GEMM_F4E2M1;
        s.is_transposed[x] = random_below(3) == 0;
        s.is_odd[x] = random_below(3) == 0;
        s.scale[x] = is_bf16 ? DG_SCALE_NONE : 1 + (enum dg_gemm_scale_type)random_below(2);
        s.gran_mn[x] = are_of_k(kind) ? 1 : (int64_t[]){1, 1, 128, 3}[random_below(4)];
    }
    s.gran_k = is_bf16 ? 1 : pick(grans_k, 6);
    s.d_type = random_below(2) ? DG_GEMM_F32 : DG_GEMM_BF16;
    s.has_c = (are_of_k(kind) || kind == DG_GROUPS_WHOLE) && random_below(2);
    s.is_c_d = s.has_c && random_below(2);
    s.is_d_odd = random_below(3) == 0;
    s.num_sms = (int32_t[]){0, 1, 3}[random_below(3)];
    s.expected_rows = (int64_t[]){0, 1, 100, 1 << 20}[random_below(4)];
    return s;
}

static void test_random(cudaStream_t stream, int count)
{
    for (int i = 0; i < count && checks_failed < 10; ++i) {
        const struct setup s = random_setup((enum dg_gemm_grouping)(DG_GROUPS_WHOLE + i % DG_GROUPS_PSUM_K));
        check_setup(&s, 2, stream);
    }
}

static void test_same_bits(cudaStream_t stream)
{
    for (int kind = DG_GROUPS_WHOLE; kind <= DG_GROUPS_PSUM_K; ++kind) {
        struct setup s = random_setup((enum dg_gemm_grouping)kind);
        s.groups = 5;
        check_setup(&s, 20, stream);
    }
}

static void test_empty_groups_and_no_k(cudaStream_t stream)
{
    for (int kind = DG_GROUPS_WHOLE; kind <= DG_GROUPS_PSUM_K; ++kind) {
        struct setup s = random_setup((enum dg_gemm_grouping)kind);
        memset(s.sizes, 0, sizeof s.sizes);
        check_setup(&s, 2, stream);
        if (!are_of_k(s.kind)) {
            s = random_setup((enum dg_gemm_grouping)kind);
            s.k = 0;
            check_setup(&s, 2, stream);
        }
    }
}

/* Whatever the layout says, nothing around d is written; compute-sanitizer sees what is read. */
static void test_layouts_that_lie(cudaStream_t stream, int count)
{
    static const int32_t lies[] = {INT32_MIN, INT32_MAX, -2, 1 << 20, 1 << 30, 0, 5, 129};
    for (int i = 0; i < count && checks_failed < 10; ++i) {
        const struct setup s = random_setup((enum dg_gemm_grouping)(DG_GROUPS_MASKED + i % (DG_GROUPS_PSUM_K - 1)));
        struct instance t = make_instance(&s);
        for (int64_t e = 0; e < layout_entries(&t.setup); ++e) {
            if (random_below(2)) {
                set_entry(&t, e, lies[random_below(8)]);
            }
        }
        t.device.exec.stream = stream;
        upload_inputs(&t, stream);
        unsigned char *result = malloc(t.d.bytes);
        run_once(&t, result, stream);
        const size_t guard = (size_t)t.d_offset;
        CHECK(memcmp(result, t.d.host, guard) == 0);
        CHECK(memcmp(result + t.d.bytes - guard, t.d.host + t.d.bytes - guard, guard) == 0);
        free(result);
        free_instance(&t);
    }
}

/* One launch, nothing else; a replay sees new data and a new layout. The first launches of the process are captured, so loading the
 * kernels is not in the way of it. */
static void test_graph_capture(cudaStream_t stream)
{
    for (int kind = DG_GROUPS_MASKED; kind <= DG_GROUPS_PSUM_K; ++kind) {
        struct setup s = random_setup((enum dg_gemm_grouping)kind);
        for (int64_t g = 0; g < s.groups; ++g) {
            s.sizes[g] = kind == DG_GROUPS_MASKED ? s.m : 64;
        }
        struct instance t = make_instance(&s);
        t.device.exec.stream = stream;
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
        CHECK_INT(run(&t.device), 0);
        must(cudaStreamEndCapture(stream, &graph), "end capture");
        size_t nodes = 0;
        must(cudaGraphGetNodes(graph, NULL, &nodes), "nodes");
        CHECK(nodes == 1);
        must(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
        unsigned char *result = malloc(t.d.bytes);
        for (int replay = 0; replay < 3; ++replay) {
            for (int64_t g = 0; g < s.groups && replay > 0; ++g) { /* never more than there is room for */
                t.setup.sizes[g] = random_below(s.sizes[g] + 1);
            }
            fill_inputs(&t);
            upload_inputs(&t, stream);
            must(cudaGraphLaunch(executable, stream), "replay");
            must(cudaMemcpyAsync(result, t.d.device, t.d.bytes, cudaMemcpyDeviceToHost, stream), "download");
            must(cudaStreamSynchronize(stream), "replay");
            if (!CHECK(is_right(&t, result))) {
                describe(&t.setup);
            }
        }
        free(result);
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
        free_instance(&t);
    }
}

/* Enough tiles for every multiprocessor to take several, of both sizes. */
static void test_many_tiles(cudaStream_t stream)
{
    for (int i = 0; i < 4; ++i) {
        struct setup s = random_setup(i % 2 ? DG_GROUPS_MASKED : DG_GROUPS_PADDED_PSUM);
        s.groups = 20;
        s.m = 300;
        s.n = 264;
        s.k = 64;
        s.alignment = 128;
        s.num_sms = 0;
        s.expected_rows = i < 2 ? 300 : 1;
        for (int64_t g = 0; g < s.groups; ++g) {
            s.sizes[g] = random_below(301);
        }
        check_setup(&s, 2, stream);
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(watchdog_seconds);
    if (!dg_cuda_available(0)) {
        printf("skipped: no CUDA device of compute capability 8.0 or newer\n");
        return CHECK_SKIPPED;
    }
    const int count = argc > 1 ? atoi(argv[1]) : 300; /* of random problems */
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    test_graph_capture(stream);
    test_empty_groups_and_no_k(stream);
    test_same_bits(stream);
    test_layouts_that_lie(stream, count / 2);
    test_many_tiles(stream);
    test_random(stream, count);
    must(cudaDeviceSynchronize(), "end");
    return check_report("cuda.grouped_sm80");
}
