/* Contexts, settings and what the library says of itself. */
#include "check.h"
#include "deep_gemm/deep_gemm.h"

#include <unistd.h>

static void check_creation(void)
{
    dg_context *ctx = (dg_context *)(void *)&ctx;
    CHECK_INT(dg_context_create(NULL, NULL), DG_ERR_INVALID_ARGUMENT);
    CHECK_TEXT(dg_last_error(), "dg_context_create: out is NULL");

    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.struct_size = 8;
    CHECK_INT(dg_context_create(&options, &ctx), DG_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(dg_last_error(), "options->struct_size is 8, expected at most ");
    CHECK(ctx == NULL);

    options = (dg_context_options)DG_CONTEXT_OPTIONS_INIT;
    options.device.type = 4;
    CHECK_INT(dg_context_create(&options, &ctx), DG_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(dg_last_error(), "options->device.type is 4, expected");
    if (!dg_has_cuda()) {
        options.device.type = DG_CUDA;
        CHECK_INT(dg_context_create(&options, &ctx), DG_ERR_NOT_SUPPORTED);
        CHECK_CONTAINS(dg_last_error(), "built without CUDA");
    }
    options = (dg_context_options)DG_CONTEXT_OPTIONS_INIT;
    options.num_threads = -1;
    CHECK_INT(dg_context_create(&options, &ctx), DG_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(dg_last_error(), "options->num_threads is -1, expected >= 0");

    dg_context_destroy(NULL);
}

static int64_t num_sms_of(dg_context *ctx)
{
    int64_t value = -1;
    CHECK_INT(dg_get_num_sms(ctx, &value), DG_OK);
    return value;
}

static int64_t alignment_of(dg_context *ctx)
{
    int64_t value = -1;
    CHECK_INT(dg_get_mk_alignment_for_contiguous_layout(ctx, &value), DG_OK);
    return value;
}

static void check_settings(void)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.num_threads = 7;
    dg_context *own;
    dg_context *shared;
    CHECK_INT(dg_context_create(&options, &own), DG_OK);
    options.use_process_settings = true;
    CHECK_INT(dg_context_create(&options, &shared), DG_OK);

    CHECK_INT(num_sms_of(own), 7); /* nothing is set: the threads */
    CHECK(num_sms_of(NULL) >= 1);
    CHECK_INT(dg_set_num_sms(own, 20), DG_OK);
    CHECK_INT(num_sms_of(own), 20);
    CHECK_INT(num_sms_of(shared), 7);
    CHECK_INT(dg_set_num_sms(shared, 30), DG_OK);
    CHECK_INT(num_sms_of(NULL), 30);
    CHECK_INT(num_sms_of(own), 20);

    CHECK_INT(alignment_of(NULL), 128);
    CHECK_INT(alignment_of(own), 128);
    CHECK_INT(dg_set_mk_alignment_for_contiguous_layout(NULL, 64), DG_OK);
    CHECK_INT(alignment_of(shared), 64);
    CHECK_INT(alignment_of(own), 128);

    int64_t value = 0;
    CHECK_INT(dg_get_theoretical_mk_alignment_for_contiguous_layout(NULL, &value, NULL), DG_OK);
    CHECK_INT(value, 128);

    CHECK(dg_get_tc_util(own, &value) == DG_OK && value == 100);
    CHECK(dg_set_tc_util(own, 60) == DG_OK && dg_get_tc_util(own, &value) == DG_OK && value == 60);
    CHECK(dg_set_tc_util(own, 0) == DG_OK && dg_get_tc_util(own, &value) == DG_OK && value == 100);
    bool pdl = true;
    CHECK(dg_get_pdl(own, &pdl) == DG_OK && !pdl);
    CHECK(dg_set_pdl(own, true) == DG_OK && dg_get_pdl(own, &pdl) == DG_OK && pdl);
    CHECK(dg_get_pdl(NULL, &pdl) == DG_OK && !pdl);
    CHECK_INT(dg_set_ignore_compile_dims(own, true), DG_OK);
    CHECK_INT(dg_set_block_size_multiple_of(own, (const int64_t[2]){16, 32}), DG_OK);
    CHECK_INT(dg_init(NULL, dg_str_from("/lib"), dg_str_from("")), DG_OK);

    CHECK_INT(dg_set_num_sms(own, 0), DG_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(dg_last_error(), "set_num_sms: new_num_sms is 0, expected ");
    CHECK_INT(num_sms_of(own), 20);

    dg_context_destroy(own);
    dg_context_destroy(shared);
}

static void check_table(void)
{
    CHECK_TEXT(dg_version(), DG_VERSION);
    size_t count;
    const dg_operator *operators = dg_operators(&count);
    CHECK(count > 50);
    const char **schemas = malloc(count * sizeof(*schemas));
    for (size_t i = 0; i < count; i++) {
        CHECK(dg_find_operator(operators[i].name) == &operators[i]);
        CHECK(strncmp(operators[i].schema, operators[i].name, strlen(operators[i].name)) == 0);
        schemas[i] = operators[i].schema;
    }
    CHECK(dg_find_operator("bf16_gemm") == NULL);
    CHECK(dg_find_operator(NULL) == NULL);
    CHECK(dg_schema_hash() == dg_schema_hash_of(schemas, count));
    CHECK(dg_schema_hash() != dg_schema_hash_of(schemas, count - 1));
    const char *const apart[2] = {"ab", "c"};
    const char *const other[2] = {"a", "bc"};
    CHECK(dg_schema_hash_of(apart, 2) != dg_schema_hash_of(other, 2));
    free(schemas);

    const dg_device cpu = {DG_CPU, 0};
    const dg_device gpu = {DG_CUDA, 0};
    CHECK(dg_backend_available("ref", cpu));
    CHECK(!dg_backend_available("ref", gpu) && !dg_backend_available("sm80", cpu) && !dg_backend_available("mmx", cpu));
    CHECK(!dg_backend_available(NULL, cpu));

    CHECK_TEXT(dg_status_name(DG_ERR_OUT_OF_MEMORY), "DG_ERR_OUT_OF_MEMORY");
    CHECK_TEXT(dg_status_name((dg_status)77), "unknown");
}

int main(void)
{
    CHECK_TEXT(dg_last_error(), "");
    check_creation();
    check_settings();
    check_table();
    return check_report("core.context");
}
