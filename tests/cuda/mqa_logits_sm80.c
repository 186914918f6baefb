/* The CUDA logits against the formula in double, over the same random calls as tests/ops/mqa_logits.c, and the CUDA schedule against that of
 * kernels/cpu/mqa_logits_ref.c, entry by entry. Buffers on the device end where elements end, so compute-sanitizer sees any read beyond; nothing
 * but the logits of the ranges is written; the same call gives the same bits; a captured call is one node and replays with new lengths.
 *
 *     test_cuda_mqa_logits_sm80 [number of cases] [the only case to run]
 */
#include "cuda/device.h"
#include "ops/mqa_logits_cases.h"
#include "device_test.h"

static void *device_copy(const void *bytes, size_t size)
{
    void *copy;
    must(cudaMalloc(&copy, size > 0 ? size : 1), "cudaMalloc");
    must(cudaMemcpy(copy, bytes, size, cudaMemcpyHostToDevice), "upload");
    must(cudaDeviceSynchronize(), "upload"); /* the copy itself may return earlier */
    return copy;
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

static void *device_buffers[MAX_BUFFERS];

/* Where on the device lies what lies here. */
static void *on_device(const void *address)
{
    const uint8_t *byte = address;
    for (int i = 0; i < buffer_count && address != NULL; i++) {
        if (byte >= buffers[i].bytes && byte < buffers[i].bytes + (buffers[i].size > 0 ? buffers[i].size : 1)) {
            return (uint8_t *)device_buffers[i] + (byte - buffers[i].bytes);
        }
    }
    return NULL;
}

/* Queries and keys as quantised data lie: dense, in any of the depths with kernels of their own. */
static void make_dense(struct dg_mqa_logits_args *args)
{
    static const int64_t depths[] = {32, 64, 128};
    const bool is_mx = one_in(2), is_paged = one_in(2);
    *args = (struct dg_mqa_logits_args){.sequences = is_paged ? 1 + random_below(4) : 1,
                                        .tokens = 1 + random_below(is_paged ? 6 : 70),
                                        .heads = 1 + random_below(130),
                                        .head_dim = depths[random_below(3)],
                                        .type = is_mx && one_in(2) ? DG_MQA_F4E2M1 : DG_MQA_F8E4M3,
                                        .ranges.num_keys = 1 + random_below(600),
                                        .has_bf16_logits = one_in(3)};
    choose_edges();
    make_queries(args, is_mx, ANY_CODE);
    struct dg_mqa_queries *q = &args->q;
    q->stride_dim = 1;
    q->stride_head = args->head_dim;
    q->stride_token = args->heads * q->stride_head;
    q->stride_sequence = args->tokens * q->stride_token;
    const int64_t elements = args->sequences * q->stride_sequence;
    uint8_t *codes = new_buffer(args->type == DG_MQA_F4E2M1 ? elements / 2 : elements);
    fill_codes(codes, (int64_t)buffers[buffer_count - 1].size, args->type, ANY_CODE);
    q->codes = codes;
    if (is_paged) {
        make_paged_keys(args, is_mx, ANY_CODE);
    } else {
        make_contiguous_keys(args, is_mx, ANY_CODE);
        const int64_t count = args->ranges.num_keys * args->head_dim;
        uint8_t *keys = new_buffer(args->type == DG_MQA_F4E2M1 ? count / 2 : count);
        fill_codes(keys, (int64_t)buffers[buffer_count - 1].size, args->type, ANY_CODE);
        args->keys.codes = keys;
        args->keys.stride_key = args->head_dim;
        args->keys.stride_dim = 1;
    }
    make_ranges(args, is_paged);
    args->is_compressed = !is_paged && one_in(3);
    args->fills_rest = !args->is_compressed && one_in(2);
    args->columns = args->is_compressed ? 1 + random_below(args->ranges.num_keys + 20) : args->ranges.num_keys;
    args->stride_row = args->columns + random_below(9);
}

static void test_logits(cudaStream_t stream, int64_t index)
{
    begin_case(index);
    struct dg_mqa_logits_args args;
    if (index % 2 == 0) {
        args = draw_case();
    } else {
        make_dense(&args);
    }
    remember_buffers();
    for (int i = 0; i < buffer_count; i++) {
        device_buffers[i] = device_copy(buffers[i].bytes, buffers[i].size);
    }
    const size_t size = (size_t)logits_size(&args);
    uint8_t *first = malloc(size), *again = malloc(size);
    memset(first, untouched, size);
    void *logits = device_copy(first, size);

    struct dg_mqa_logits_args there = args;
    there.q.codes = on_device(args.q.codes);
    there.q.sf = on_device(args.q.sf);
    there.q.weights = on_device(args.q.weights);
    there.keys.codes = on_device(args.keys.codes);
    there.keys.sf = on_device(args.keys.sf);
    there.keys.table = on_device(args.keys.table);
    there.ranges.begin = on_device(args.ranges.begin);
    there.ranges.end = on_device(args.ranges.end);
    there.logits = logits;
    there.exec = (struct dg_exec){.stream = stream, .num_sms = one_in(4) ? 1 : 0};
    CHECK_INT(dg_mqa_logits_sm80(&there), 0);
    must(cudaStreamSynchronize(stream), "logits");
    must(cudaMemcpy(first, logits, size, cudaMemcpyDeviceToHost), "download");
    there.exec.num_sms = 0;
    CHECK_INT(dg_mqa_logits_sm80(&there), 0);
    must(cudaStreamSynchronize(stream), "logits");
    must(cudaMemcpy(again, logits, size, cudaMemcpyDeviceToHost), "download");
    CHECK(memcmp(first, again, size) == 0);

    const long failed_before = checks_failed;
    check_logits(&args, first, (int64_t)size);
    if (checks_failed != failed_before) {
        describe("sm80", &args);
        fprintf(stderr, "    case %lld\n", (long long)index);
    }
    for (int i = 0; i < buffer_count; i++) {
        cudaFree(device_buffers[i]);
    }
    cudaFree(logits);
    free(first);
    free(again);
    free_buffers();
}

/* ---- schedule ---------------------------------------------------------------------------------------------------- */

static void test_schedule(cudaStream_t stream, int64_t index)
{
    begin_case(index + 1000000);
    struct dg_mqa_schedule_args args = {.batch = random_below(one_in(3) ? 5000 : 20),
                                        .next_n = 1 + random_below(6),
                                        .lens_stride = 1 + random_below(3),
                                        .indices_stride = 1 + random_below(2),
                                        .num_slots = 1 + random_below(one_in(4) ? 2000 : 160)};
    const int64_t longest = one_in(3) ? 200000 : one_in(2) ? 2000 : 10;
    const size_t lens_size = 4 * (size_t)(args.batch * args.lens_stride), indices_size = 4 * (size_t)(args.batch * args.indices_stride);
    int32_t *lens = calloc(lens_size + 4, 1), *indices = calloc(indices_size + 4, 1);
    for (int64_t i = 0; i < args.batch; i++) {
        lens[i * args.lens_stride] = (int32_t)(one_in(8) ? 0 : random_below(longest) - 3);
    }
    const int64_t run = 1 + random_below(6);
    for (int64_t i = 1; i < args.batch; i++) {
        indices[i * args.indices_stride] = indices[(i - 1) * args.indices_stride] + one_in(run);
    }
    const bool has_indices = one_in(2);
    args.next_n = has_indices ? 1 : args.next_n;
    const size_t size = 8 * (size_t)(args.num_slots + 1);
    int32_t *expected = malloc(size), *got = malloc(size);
    memset(got, untouched, size);

    struct dg_mqa_schedule_args here = args;
    here.lens = lens;
    here.indices = has_indices ? indices : NULL;
    here.schedule = expected;
    here.exec = (struct dg_exec){.parallel_for = run_serially, .num_threads = 1};
    CHECK_INT(dg_mqa_schedule_ref(&here), 0);

    void *lens_there = device_copy(lens, lens_size), *indices_there = device_copy(indices, indices_size), *schedule_there = device_copy(got, size);
    args.lens = lens_there;
    args.indices = has_indices ? indices_there : NULL;
    args.schedule = schedule_there;
    args.exec = (struct dg_exec){.stream = stream};
    CHECK_INT(dg_mqa_schedule_sm80(&args), 0);
    must(cudaStreamSynchronize(stream), "schedule");
    must(cudaMemcpy(got, schedule_there, size, cudaMemcpyDeviceToHost), "download");
    for (int64_t i = 0; i < 2 * (args.num_slots + 1); i++) {
        if (!CHECK_INT(got[i], expected[i])) {
            fprintf(stderr, "    schedule %lld, entry %lld: batch %lld, next_n %lld, %lld slots%s\n", (long long)index, (long long)i,
                    (long long)args.batch, (long long)args.next_n, (long long)args.num_slots, has_indices ? ", indices" : "");
            break;
        }
    }
    cudaFree(lens_there);
    cudaFree(indices_there);
    cudaFree(schedule_there);
    free(lens);
    free(indices);
    free(expected);
    free(got);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------- */

/* One query of ones against keys of ones: a logit is 32 where there is a key. The replay sees another length. */
static void test_graph(cudaStream_t stream)
{
    enum { KEYS = 300, DEPTH = 32 };
    uint8_t codes[KEYS * DEPTH];
    memset(codes, 0x38, sizeof(codes)); /* 1 */
    float ones[KEYS];
    for (int i = 0; i < KEYS; i++) {
        ones[i] = 1;
    }
    int32_t length = 100;
    int32_t schedule[4] = {0};
    uint8_t *codes_there = device_copy(codes, sizeof(codes));
    float *ones_there = device_copy(ones, sizeof(ones)), *logits = device_copy(ones, sizeof(ones));
    int32_t *length_there = device_copy(&length, 4), *schedule_there = device_copy(schedule, sizeof(schedule));
    const struct dg_mqa_logits_args args = {
        .sequences = 1, .tokens = 1, .heads = 1, .head_dim = DEPTH, .type = DG_MQA_F8E4M3,
        .q = {.codes = codes_there, .stride_sequence = DEPTH, .stride_token = DEPTH, .stride_head = DEPTH, .stride_dim = 1, .weights = ones_there,
              .weights_stride_row = 1, .weights_stride_head = 1},
        .keys = {.codes = codes_there, .stride_key = DEPTH, .stride_dim = 1, .sf = (const uint8_t *)ones_there, .sf_stride_key = 1, .page_keys = KEYS},
        .ranges = {.end = length_there, .end_stride_sequence = 1, .end_stride_token = 1, .num_keys = KEYS},
        .logits = logits, .stride_row = KEYS, .columns = KEYS, .fills_rest = true, .exec = {.stream = stream}};
    const struct dg_mqa_schedule_args plan = {.batch = 1, .next_n = 1, .lens = length_there, .lens_stride = 1, .num_slots = 1,
                                              .schedule = schedule_there, .exec = {.stream = stream}};
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    size_t nodes = 0;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
    CHECK_INT(dg_mqa_schedule_sm80(&plan), 0);
    CHECK_INT(dg_mqa_logits_sm80(&args), 0);
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    must(cudaGraphGetNodes(graph, NULL, &nodes), "nodes");
    CHECK_INT(nodes, 2); /* a launch each, nothing else */
    must(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    const int32_t lengths[] = {100, 299, 0};
    for (int i = 0; i < 3; i++) {
        must(cudaMemcpy(length_there, &lengths[i], 4, cudaMemcpyHostToDevice), "upload");
        must(cudaDeviceSynchronize(), "upload");
        must(cudaGraphLaunch(executable, stream), "replay");
        must(cudaStreamSynchronize(stream), "replay");
        float got[KEYS];
        must(cudaMemcpy(got, logits, sizeof(got), cudaMemcpyDeviceToHost), "download");
        int right = 0;
        for (int j = 0; j < KEYS; j++) {
            right += got[j] == (j < lengths[i] ? (float)DEPTH : -INFINITY);
        }
        CHECK_INT(right, KEYS);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    void *all[] = {codes_there, ones_there, logits, length_there, schedule_there};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        cudaFree(all[i]);
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
    const int64_t count = argc > 1 ? atoll(argv[1]) : 200;
    const int64_t only = argc > 2 ? atoll(argv[2]) : -1;
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    test_graph(stream);
    for (int64_t i = only < 0 ? 0 : only; i < (only < 0 ? count : only + 1) && checks_failed < 20; i++) {
        test_logits(stream, i);
        test_schedule(stream, i);
    }
    must(cudaDeviceSynchronize(), "end");
    return check_report("cuda.mqa_logits_sm80");
}
