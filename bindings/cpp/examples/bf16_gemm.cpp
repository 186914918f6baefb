/* The library from C++: a GEMM, a setting, an operator that returns a tensor, and an error.
 *
 *   c++ -std=c++17 bf16_gemm.cpp $(pkg-config --cflags --libs deep_gemm) -o bf16_gemm
 */
#include <deep_gemm/deep_gemm.hpp>

#include <cstdint>
#include <cstring>
#include <iostream>
#include <vector>

namespace {

/* For numbers that bfloat16 holds exactly. */
std::uint16_t bf16(float value)
{
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16);
}

void expect(bool holds, const char *what)
{
    if (!holds) {
        throw std::runtime_error(what);
    }
}

void multiply(deep_gemm::Handle ctx)
{
    constexpr std::int64_t m = 3, n = 5, k = 70;
    std::vector<std::uint16_t> a(m * k), b(n * k);
    std::vector<float> d(m * n, 1.0F);
    for (std::size_t i = 0; i < a.size(); i++) {
        a[i] = bf16(static_cast<float>(i % 7) - 3.0F);
    }
    for (std::size_t i = 0; i < b.size(); i++) {
        b[i] = bf16(static_cast<float>(i % 5) - 2.0F);
    }
    const deep_gemm::TensorView a_view(a.data(), dg_dtype{DG_BF16}, {m, k});
    const deep_gemm::TensorView b_view(b.data(), dg_dtype{DG_BF16}, {n, k});
    const deep_gemm::TensorRef d_ref(d.data(), {m, n});

    deep_gemm::bf16_gemm_nt_options options;
    options.c = d_ref; /* d += a @ b.T */
    deep_gemm::bf16_gemm_nt(a_view, b_view, d_ref, options, ctx);
    for (std::int64_t i = 0; i < m; i++) {
        for (std::int64_t j = 0; j < n; j++) {
            std::int64_t sum = 1;
            for (std::int64_t p = 0; p < k; p++) {
                sum += ((i * k + p) % 7 - 3) * ((j * k + p) % 5 - 2);
            }
            expect(d[static_cast<std::size_t>(i * n + j)] == static_cast<float>(sum), "d is not c + a @ b.T");
        }
    }

    try {
        deep_gemm::bf16_gemm_nt(a_view, deep_gemm::TensorView(b.data(), dg_dtype{DG_BF16}, {n, k - 1}), d_ref);
        expect(false, "a wrong shape was let through");
    } catch (const deep_gemm::Error &error) {
        expect(error.status() == DG_ERR_INVALID_ARGUMENT, "a wrong shape has another status");
        std::cout << "with a wrong shape: " << error.status_name() << ": " << error.what() << '\n';
    }
}

void schedule()
{
    const std::vector<std::int32_t> lengths = {70, 1, 300};
    const deep_gemm::Tensor metadata = deep_gemm::get_paged_mqa_logits_metadata({lengths.data(), {3, 1}}, 64, 4);
    expect(metadata.shape().size() == 2 && metadata.shape()[0] == 5 && metadata.shape()[1] == 2, "the schedule has another shape");

    std::vector<std::int32_t> own(10, -1);
    deep_gemm::get_paged_mqa_logits_metadata_into({lengths.data(), {3, 1}}, 64, 4, {own.data(), {5, 2}});
    expect(std::memcmp(own.data(), metadata.data<std::int32_t>(), metadata.size_bytes()) == 0, "the schedule differs in memory of one's own");
}

} /* namespace */

int main()
{
    try {
        std::cout << "deep_gemm " << deep_gemm::version() << '\n';
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.backend = "ref";
        const deep_gemm::Context ctx(options);
        multiply({});
        multiply(ctx);
        schedule();

        deep_gemm::set_mk_alignment_for_contiguous_layout(256, ctx);
        expect(deep_gemm::get_mk_alignment_for_contiguous_layout(ctx) == 256, "a setting of the context is lost");
        return 0;
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
