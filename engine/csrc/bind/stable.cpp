// The folder that knows torch: schemas, checks of shapes and types, and calls of the C entry points.
//
// It uses the LibTorch stable ABI only (target 2.11), so the library made from it serves every torch from
// 2.11 on and every Python. All operators write into tensors that the caller made; autograd formulas are
// in engine/ops. With MS_CUDA the same functions serve CUDA tensors; no CUDA header is needed for that.
#include <initializer_list>

#include <torch/csrc/stable/library.h>

#include "ms/activation.h"
#include "ms/cross_entropy.h"
#include "ms/norm.h"
#include "ms/optim.h"
#include "ms/rotary.h"
#include "place.hpp"

namespace {

#ifdef MS_CUDA
#define CALL(place, name, ...) \
    done(#name, (place).cuda ? ms_cuda_##name(__VA_ARGS__) : ms_cpu_##name(__VA_ARGS__))
#define COLUMN_SCRATCH(place, ...) \
    ((place).cuda ? ms_cuda_column_scratch(__VA_ARGS__) : ms_cpu_column_scratch(__VA_ARGS__))
#else
#define CALL(place, name, ...) done(#name, ms_cpu_##name(__VA_ARGS__))
#define COLUMN_SCRATCH(place, ...) ms_cpu_column_scratch(__VA_ARGS__)
#endif

void norm_forward(int64_t kind, Tensor x, Maybe residual, Tensor weight, Maybe bias, Tensor y,
                  Maybe total, Maybe mean, Tensor rstd, double eps) {
    int64_t cols = weight.numel(), rows = cols ? x.numel() / cols : 0, all = rows * cols;
    ScalarType type = x.scalar_type(), wide = wide_of(x);
    check("x", x, x, all, type);
    check("residual", residual, x, all, type);
    check("weight", weight, x, cols, type);
    check("bias", bias, x, cols, type);
    check("y", y, x, all, type);
    check("total", total, x, all, type);
    check("mean", mean, x, rows, wide);
    check("rstd", rstd, x, rows, wide);
    Place at(x);
    CALL(at, norm_forward, int(kind), pointer(x), pointer(residual), pointer(weight), pointer(bias),
         pointer(y), pointer(total), pointer(mean), pointer(rstd), rows, cols, eps, dtype_of(x),
         at.stream);
}

void norm_backward(int64_t kind, Tensor dy, Maybe dtotal, Tensor s, Tensor weight, Maybe mean,
                   Tensor rstd, Tensor dx, Tensor dweight, Maybe dbias) {
    int64_t cols = weight.numel(), rows = cols ? s.numel() / cols : 0, all = rows * cols;
    ScalarType type = s.scalar_type(), wide = wide_of(s);
    check("dy", dy, s, all, type);
    check("dtotal", dtotal, s, all, type);
    check("s", s, s, all, type);
    check("weight", weight, s, cols, type);
    check("mean", mean, s, rows, wide);
    check("rstd", rstd, s, rows, wide);
    check("dx", dx, s, all, type);
    check("dweight", dweight, s, cols, wide);
    check("dbias", dbias, s, cols, wide);
    Place at(s);
    Tensor scratch = torch::stable::new_empty(s, {COLUMN_SCRATCH(at, rows, cols, 2)}, wide);
    CALL(at, norm_backward, int(kind), pointer(dy), pointer(dtotal), pointer(s), pointer(weight),
         pointer(mean), pointer(rstd), pointer(dx), pointer(dweight), pointer(dbias), pointer(scratch),
         rows, cols, dtype_of(s), at.stream);
}

void gelu_forward(Tensor x, Maybe bias, Tensor y) {
    int64_t rows = x.size(0), cols = x.size(1), stride = check_rows("x", x, x, rows, cols);
    check("bias", bias, x, cols, x.scalar_type());
    check("y", y, x, rows * cols, x.scalar_type());
    Place at(x);
    CALL(at, gelu_forward, pointer(x), pointer(bias), pointer(y), rows, cols, stride, dtype_of(x),
         at.stream);
}

void gelu_backward(Tensor dy, Tensor x, Maybe bias, Tensor dx, Maybe dbias) {
    int64_t rows = x.size(0), cols = x.size(1), stride = check_rows("x", x, x, rows, cols);
    int64_t dstride = check_rows("dx", dx, x, rows, cols);
    check("dy", dy, x, rows * cols, x.scalar_type());
    check("bias", bias, x, cols, x.scalar_type());
    check("dbias", dbias, x, cols, wide_of(x));
    Place at(x);
    Maybe scratch;
    if (dbias.has_value())
        scratch = torch::stable::new_empty(x, {COLUMN_SCRATCH(at, rows, cols, 1)}, wide_of(x));
    CALL(at, gelu_backward, pointer(dy), pointer(x), pointer(bias), pointer(dx), pointer(dbias),
         pointer(scratch), rows, cols, stride, dstride, dtype_of(x), at.stream);
}

void swiglu_forward(Tensor gate, Tensor up, Tensor y) {
    int64_t rows = gate.size(0), cols = gate.size(1), stride = check_rows("gate", gate, gate, rows, cols);
    STD_TORCH_CHECK(check_rows("up", up, gate, rows, cols) == stride, "gate and up: strides differ");
    check("y", y, gate, rows * cols, gate.scalar_type());
    Place at(gate);
    CALL(at, swiglu_forward, pointer(gate), pointer(up), pointer(y), rows, cols, stride, dtype_of(gate),
         at.stream);
}

void swiglu_backward(Tensor dy, Tensor gate, Tensor up, Tensor dgate, Tensor dup) {
    int64_t rows = gate.size(0), cols = gate.size(1), stride = check_rows("gate", gate, gate, rows, cols);
    STD_TORCH_CHECK(check_rows("up", up, gate, rows, cols) == stride, "gate and up: strides differ");
    int64_t dstride = check_rows("dgate", dgate, gate, rows, cols);
    STD_TORCH_CHECK(check_rows("dup", dup, gate, rows, cols) == dstride, "dgate and dup: strides differ");
    check("dy", dy, gate, rows * cols, gate.scalar_type());
    Place at(gate);
    CALL(at, swiglu_backward, pointer(dy), pointer(gate), pointer(up), pointer(dgate), pointer(dup),
         rows, cols, stride, dstride, dtype_of(gate), at.stream);
}

void cross_entropy_stats(Tensor logits, Tensor targets, Tensor largest, Tensor total, Tensor target,
                         int64_t first) {
    int64_t rows = logits.size(0), cols = logits.size(1);
    int64_t stride = check_rows("logits", logits, logits, rows, cols);
    check("targets", targets, logits, rows, ScalarType::Long);
    check("largest", largest, logits, rows, wide_of(logits));
    check("total", total, logits, rows, wide_of(logits));
    check("target", target, logits, rows, wide_of(logits));
    Place at(logits);
    CALL(at, cross_entropy_stats, pointer(logits), (const int64_t*)pointer(targets), pointer(largest),
         pointer(total), pointer(target), rows, cols, stride, first, dtype_of(logits), at.stream);
}

void cross_entropy_gradient(Tensor logits, Tensor targets, Tensor largest, Tensor total, Tensor scale,
                            Tensor grad, int64_t first) {
    int64_t rows = logits.size(0), cols = logits.size(1);
    int64_t stride = check_rows("logits", logits, logits, rows, cols);
    STD_TORCH_CHECK(check_rows("grad", grad, logits, rows, cols) == stride, "grad: another stride");
    check("targets", targets, logits, rows, ScalarType::Long);
    check("largest", largest, logits, rows, wide_of(logits));
    check("total", total, logits, rows, wide_of(logits));
    check("scale", scale, logits, 1, wide_of(logits));
    Place at(logits);
    CALL(at, cross_entropy_gradient, pointer(logits), (const int64_t*)pointer(targets), pointer(largest),
         pointer(total), pointer(scale), pointer(grad), rows, cols, stride, first, dtype_of(logits),
         at.stream);
}

void rotary(Tensor x, Tensor cos, Tensor sin, Tensor y, int64_t batch, int64_t dim, bool inverse) {
    int64_t rows = x.size(0), cols = x.size(1), stride = check_rows("x", x, x, rows, cols);
    STD_TORCH_CHECK(batch > 0 && dim > 0 && dim % 2 == 0 && cols % dim == 0 && rows % batch == 0,
                    "x: not rows of whole heads for whole positions");
    int64_t y_stride = check_rows("y", y, x, rows, cols), table = rows / batch * (dim / 2);
    check("cos", cos, x, table, x.scalar_type());
    check("sin", sin, x, table, x.scalar_type());
    Place at(x);
    CALL(at, rotary, pointer(x), pointer(cos), pointer(sin), pointer(y), rows, batch, cols / dim, dim,
         stride, y_stride, int(inverse), dtype_of(x), at.stream);
}

void check_state(const Tensor& param, std::initializer_list<Tensor> others) {
    for (const Tensor& t : others) check("state", t, param, param.numel(), param.scalar_type());
    check("param", param, param, param.numel(), param.scalar_type());
}

void adamw(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, double lr, double beta1,
           double beta2, double eps, double decay, double c1, double c2, double grad_scale) {
    check_state(param, {grad, exp_avg, exp_avg_sq});
    Place at(param);
    CALL(at, adamw, pointer(param), pointer(grad), pointer(exp_avg), pointer(exp_avg_sq), param.numel(),
         lr, beta1, beta2, eps, decay, c1, c2, grad_scale, dtype_of(param), at.stream);
}

void lamb_moments(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor pieces,
                  Tensor first_piece, Tensor decay, Tensor norms, double beta1, double beta2, double eps,
                  double c1, double c2, double grad_scale) {
    int64_t count = pieces.size(0), tensors = decay.numel();
    check_state(param, {grad, exp_avg, exp_avg_sq});
    check("pieces", pieces, param, 3 * count, ScalarType::Long);
    check("first_piece", first_piece, param, tensors + 1, ScalarType::Long);
    check("decay", decay, param, tensors, ScalarType::Double);
    check("norms", norms, param, 2 * tensors, ScalarType::Double);
    Place at(param);
    Tensor partial = torch::stable::new_empty(param, {2 * count}, ScalarType::Double);
    CALL(at, lamb_moments, pointer(param), pointer(grad), pointer(exp_avg), pointer(exp_avg_sq),
         (const int64_t*)pointer(pieces), count, (const int64_t*)pointer(first_piece),
         (const double*)pointer(decay), (double*)pointer(partial), (double*)pointer(norms), tensors,
         beta1, beta2, eps, c1, c2, grad_scale, dtype_of(param), at.stream);
}

void lamb_apply(Tensor param, Tensor update, Tensor pieces, Tensor ratio, double lr) {
    check_state(param, {update});
    check("pieces", pieces, param, 3 * pieces.size(0), ScalarType::Long);
    check("ratio", ratio, param, ratio.numel(), ScalarType::Double);
    Place at(param);
    CALL(at, lamb_apply, pointer(param), pointer(update), (const int64_t*)pointer(pieces), pieces.size(0),
         (const double*)pointer(ratio), lr, dtype_of(param), at.stream);
}

}  // namespace

STABLE_TORCH_LIBRARY(msctl, m) {
    m.def(
        "norm_forward(int kind, Tensor x, Tensor? residual, Tensor weight, Tensor? bias, Tensor(a!) y, "
        "Tensor(b!)? total, Tensor(c!)? mean, Tensor(d!) rstd, float eps) -> ()");
    m.def(
        "norm_backward(int kind, Tensor dy, Tensor? dtotal, Tensor s, Tensor weight, Tensor? mean, "
        "Tensor rstd, Tensor(a!) dx, Tensor(b!) dweight, Tensor(c!)? dbias) -> ()");
    m.def("rotary(Tensor x, Tensor cos, Tensor sin, Tensor(a!) y, int batch, int dim, bool inverse) -> ()");
    m.def("gelu_forward(Tensor x, Tensor? bias, Tensor(a!) y) -> ()");
    m.def("gelu_backward(Tensor dy, Tensor x, Tensor? bias, Tensor(a!) dx, Tensor(b!)? dbias) -> ()");
    m.def("swiglu_forward(Tensor gate, Tensor up, Tensor(a!) y) -> ()");
    m.def("swiglu_backward(Tensor dy, Tensor gate, Tensor up, Tensor(a!) dgate, Tensor(b!) dup) -> ()");
    m.def(
        "cross_entropy_stats(Tensor logits, Tensor targets, Tensor(a!) largest, Tensor(b!) total, "
        "Tensor(c!) target, int first) -> ()");
    m.def(
        "cross_entropy_gradient(Tensor logits, Tensor targets, Tensor largest, Tensor total, "
        "Tensor scale, Tensor(a!) grad, int first) -> ()");
    m.def(
        "adamw(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, float lr, "
        "float beta1, float beta2, float eps, float decay, float c1, float c2, float grad_scale) -> ()");
    m.def(
        "lamb_moments(Tensor param, Tensor(a!) grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, "
        "Tensor pieces, Tensor first_piece, Tensor decay, Tensor(d!) norms, float beta1, float beta2, "
        "float eps, float c1, float c2, float grad_scale) -> ()");
    m.def("lamb_apply(Tensor(a!) param, Tensor update, Tensor pieces, Tensor ratio, float lr) -> ()");
}

#define IMPLEMENT(m)                                                           \
    m.impl("norm_forward", TORCH_BOX(&norm_forward));                          \
    m.impl("norm_backward", TORCH_BOX(&norm_backward));                        \
    m.impl("rotary", TORCH_BOX(&rotary));                                      \
    m.impl("gelu_forward", TORCH_BOX(&gelu_forward));                          \
    m.impl("gelu_backward", TORCH_BOX(&gelu_backward));                        \
    m.impl("swiglu_forward", TORCH_BOX(&swiglu_forward));                      \
    m.impl("swiglu_backward", TORCH_BOX(&swiglu_backward));                    \
    m.impl("cross_entropy_stats", TORCH_BOX(&cross_entropy_stats));            \
    m.impl("cross_entropy_gradient", TORCH_BOX(&cross_entropy_gradient));      \
    m.impl("adamw", TORCH_BOX(&adamw));                                        \
    m.impl("lamb_moments", TORCH_BOX(&lamb_moments));                          \
    m.impl("lamb_apply", TORCH_BOX(&lamb_apply))

STABLE_TORCH_LIBRARY_IMPL(msctl, CPU, m) { IMPLEMENT(m); }

#ifdef MS_CUDA
STABLE_TORCH_LIBRARY_IMPL(msctl, CUDA, m) { IMPLEMENT(m); }
#endif
