// Checks of tensors, and the place (device, stream or threads) that an operator runs at.
#pragma once

#include <dlfcn.h>

#include <optional>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "ms/base.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Maybe = std::optional<Tensor>;

int dtype_of(const Tensor& t) {
    switch (t.scalar_type()) {
        case ScalarType::Float: return MS_F32;
        case ScalarType::Double: return MS_F64;
        case ScalarType::BFloat16: return MS_BF16;
        case ScalarType::Half: return MS_F16;
        default: return -1;
    }
}

ScalarType wide_of(const Tensor& t) {
    return t.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

void* pointer(const Tensor& t) { return t.data_ptr(); }
void* pointer(const Maybe& t) { return t.has_value() ? t->data_ptr() : nullptr; }

// A dense tensor of `numel` elements of a type, on the device of `like`.
void check(const char* name, const Tensor& t, const Tensor& like, int64_t numel, ScalarType type) {
    STD_TORCH_CHECK(t.scalar_type() == type, name, ": wrong element type");
    STD_TORCH_CHECK(t.numel() == numel, name, ": has ", t.numel(), " elements, needs ", numel);
    STD_TORCH_CHECK(t.is_contiguous(), name, ": not contiguous");
    STD_TORCH_CHECK(t.is_cuda() == like.is_cuda() && t.get_device_index() == like.get_device_index(),
                    name, ": on another device");
}

void check(const char* name, const Maybe& t, const Tensor& like, int64_t numel, ScalarType type) {
    if (t.has_value()) check(name, *t, like, numel, type);
}

// A matrix whose rows are dense; returns the distance between rows.
int64_t check_rows(const char* name, const Tensor& t, const Tensor& like, int64_t rows, int64_t cols) {
    STD_TORCH_CHECK(t.dim() == 2 && t.size(0) == rows && t.size(1) == cols, name, ": not [", rows, ", ",
                    cols, "]");
    STD_TORCH_CHECK(t.scalar_type() == like.scalar_type(), name, ": wrong element type");
    STD_TORCH_CHECK(t.is_cuda() == like.is_cuda() && t.get_device_index() == like.get_device_index(),
                    name, ": on another device");
    STD_TORCH_CHECK(t.stride(1) == 1 || cols == 1, name, ": elements of a row are apart");
    int64_t stride = rows > 1 ? t.stride(0) : cols;
    STD_TORCH_CHECK(stride >= cols, name, ": rows overlap");
    return stride;
}

void run_threads(int64_t count, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
    torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
        body(begin, end, context);
    });
}

const ms_threads kThreads{run_threads};

// Makes the tensor's device current and finds the stream that torch works on there. The function that
// knows it lies in libtorch_cuda, which a library must not link to if it is to load without CUDA.
class Place {
  public:
    explicit Place(const Tensor& t) : cuda(t.is_cuda()) {
        if (!cuda) {
            stream = const_cast<ms_threads*>(&kThreads);
            return;
        }
        guard.emplace(t.get_device_index());
        using Find = AOTITorchError (*)(int32_t, void**);
        static const Find find = [] {
            void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
            return library ? reinterpret_cast<Find>(dlsym(library, "aoti_torch_get_current_cuda_stream"))
                           : nullptr;
        }();
        STD_TORCH_CHECK(find != nullptr, "libtorch_cuda does not tell the current stream");
        STD_TORCH_CHECK(find(t.get_device_index(), &stream) == 0, "no current CUDA stream");
    }

    bool cuda;
    void* stream = nullptr;

  private:
    std::optional<torch::stable::accelerator::DeviceGuard> guard;
};

void done(const char* name, int status) {
    STD_TORCH_CHECK(status == MS_OK, "msctl::", name, ": status ", status,
                    status == MS_BAD_DTYPE ? " (no form for this element type)"
                    : status == MS_LAUNCH  ? " (CUDA refused the launch)"
                                           : " (wrong size or missing tensor)");
}

}  // namespace
