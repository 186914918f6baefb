/* Runs a package of AOTInductor whose model calls operators of deep_gemm, in a C++ program without Python.
 *
 *     run_package libdeep_gemm_torch.so model.pt2 ROWS COLUMNS
 *
 * The library registers the operators when it is loaded; nothing of it is called by name. The model gets a matrix of ones, and the sum of
 * its result is printed.
 */
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

int main(int argc, char **argv)
{
    if (argc != 5) {
        std::fprintf(stderr, "usage: %s libdeep_gemm_torch.so model.pt2 ROWS COLUMNS\n", argv[0]);
        return 2;
    }
    if (dlopen(argv[1], RTLD_NOW) == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    try {
        torch::inductor::AOTIModelPackageLoader loader(argv[2]);
        const std::vector<std::int64_t> shape{std::stoll(argv[3]), std::stoll(argv[4])};
        const std::vector<at::Tensor> results = loader.run({at::ones(shape)});
        std::printf("%.9g\n", results.at(0).sum(at::kDouble).item<double>());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
