#include "models/networks/flat_model.h"

#include <ATen/MemoryOverlap.h>

#include <stdexcept>

#include "models/files/state_names.h"

namespace gossipd {

namespace {

using torch::Tensor;

constexpr std::int64_t exact_integer_max = std::int64_t{1} << 24;  // that a float holds

Tensor host_view(std::span<const float> host) {
  return torch::from_blob(const_cast<float*>(host.data()), {static_cast<std::int64_t>(host.size())},
                          torch::kFloat32);
}

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw std::invalid_argument("'" + name + "' " + what);
}

bool is_float(const Tensor& tensor) { return tensor.scalar_type() == torch::kFloat32; }

bool is_constant(const Tensor& buffer) {
  return is_float(buffer) && !torch::isfinite(buffer).all().item<bool>();
}

SegmentKind kind_of_buffer(const std::string& name, const Tensor& buffer) {
  if (is_float(buffer)) return SegmentKind::statistic;
  if (!at::isIntegralType(buffer.scalar_type(), /*includeBool=*/true))
    refuse(name, std::string("is a buffer of ") + c10::toString(buffer.scalar_type()) +
                     "; buffers may be of float32, integers or booleans");
  if (buffer.numel() > 0 && buffer.scalar_type() != torch::kBool &&
      buffer.abs().max().item<std::int64_t>() > exact_integer_max)
    refuse(name, "is a buffer with integers beyond 2^24; keep it out of the module");
  return SegmentKind::local;
}

bool shares_memory(const Tensor& a, const Tensor& b) {
  return a.is_same(b) ||
         (a.numel() > 0 && a.scalar_type() == b.scalar_type() && a.data_ptr() == b.data_ptr() &&
          a.sizes() == b.sizes() && a.strides() == b.strides());
}

// A part of it, or all of it in another shape.
bool overlaps(const Tensor& a, const Tensor& b) {
  return at::get_overlap_status(a, b) == at::MemOverlapStatus::Partial;
}

}  // namespace

// A segment to be, with all the tensors that are it.
struct FlatModel::Placed {
  std::string name;
  SegmentKind kind;
  std::vector<Tensor> tensors;
};

std::vector<FlatModel::Placed> FlatModel::place(const ModelTensors& tensors) {
  std::vector<Placed> parameters, rest;
  const auto known = [&](const std::string& name, const Tensor& tensor) {
    for (auto* list : {&parameters, &rest})
      for (Placed& placed : *list) {
        if (shares_memory(placed.tensors.front(), tensor)) {
          placed.tensors.push_back(tensor);
          return true;
        }
        if (overlaps(placed.tensors.front(), tensor))
          refuse(name, "overlaps '" + placed.name + "' in memory without being the same tensor, " +
                           "so they would not stay tied; make them one, and take a part or " +
                           "another shape of it in forward()");
      }
    return false;
  };
  for (const auto& [name, tensor] : tensors.parameters) {
    if (!is_float(tensor))
      refuse(name, std::string("is a parameter of ") + c10::toString(tensor.scalar_type()) +
                       "; parameters must be of float32");
    if (known(name, tensor)) continue;
    if (tensor.requires_grad())
      parameters.push_back({name, SegmentKind::parameter, {tensor}});
    else
      rest.push_back({name, SegmentKind::statistic, {tensor}});
  }
  if (parameters.empty())
    throw std::invalid_argument(
        "the model has no parameters that can be trained; they are what is an nn.Parameter with "
        "requires_grad = True");
  for (const auto& [name, tensor] : tensors.buffers)
    if (!is_constant(tensor) && !known(name, tensor))
      rest.push_back({name, kind_of_buffer(name, tensor), {tensor}});
  parameters.insert(parameters.end(), std::make_move_iterator(rest.begin()),
                    std::make_move_iterator(rest.end()));
  return parameters;
}

std::vector<ModelTensors::Named> FlatModel::kept(const ModelTensors& tensors) {
  const torch::NoGradGuard no_gradient;
  std::vector<ModelTensors::Named> out;
  for (const Placed& placed : place(tensors)) out.push_back({placed.name, placed.tensors.front()});
  return out;
}

FlatModel::FlatModel(const ModelTensors& tensors, Gradient gradient) {
  const torch::NoGradGuard no_gradient;
  std::vector<Placed> placed = place(tensors);
  std::vector<Segment> segments;
  std::uint64_t floats = 0, trained_floats = 0;
  for (const Placed& p : placed) {
    const auto size = static_cast<std::uint64_t>(p.tensors.front().numel());
    const std::uint64_t offset = aligned_offset(floats);
    segments.push_back({p.name, p.tensors.front().sizes().vec(), offset, size, p.kind});
    floats = offset + size;
    if (p.kind == SegmentKind::parameter) trained_floats = floats;
  }
  if (const auto reason = ambiguous_name(segments)) throw std::invalid_argument(*reason);
  auto schema = Schema::build(std::move(segments));
  if (!schema) throw std::invalid_argument(schema.error().text);
  schema_ = std::move(*schema);

  values_ = torch::zeros({static_cast<std::int64_t>(floats)},
                         placed.front().tensors.front().options().requires_grad(false));
  trained_ = values_.narrow(0, 0, static_cast<std::int64_t>(trained_floats));
  untrained_ = values_.narrow(0, trained_.numel(), values_.numel() - trained_.numel());
  if (gradient == Gradient::yes) gradient_ = torch::zeros_like(trained_);
  auto segment = schema_.segments().begin();
  const auto view = [&](const Tensor& flat) {
    return flat
        .narrow(0, static_cast<std::int64_t>(segment->offset),
                static_cast<std::int64_t>(segment->size))
        .view(segment->shape);
  };
  for (Placed& p : placed) {
    if (p.kind == SegmentKind::local) {
      counters_.push_back({p.tensors.front(), segment->offset});
    } else {
      view(values_).copy_(p.tensors.front());
      for (Tensor& tensor : p.tensors) {
        tensor.set_data(view(values_));
        if (p.kind == SegmentKind::parameter && gradient == Gradient::yes)
          tensor.mutable_grad() = view(gradient_);
      }
      if (p.name.ends_with("running_var")) variances_.push_back(view(values_));
    }
    ++segment;
  }
}

void FlatModel::pull_counters() {
  for (const Counter& counter : counters_)
    values_.narrow(0, static_cast<std::int64_t>(counter.offset), counter.tensor.numel())
        .copy_(counter.tensor.flatten());
}

void FlatModel::push_counters() {
  for (const Counter& counter : counters_)
    counter.tensor.copy_(
        values_.narrow(0, static_cast<std::int64_t>(counter.offset), counter.tensor.numel())
            .view(counter.tensor.sizes()));
}

void FlatModel::copy_to(std::span<float> host) {
  const torch::NoGradGuard no_gradient;
  pull_counters();
  host_view(host).copy_(values_);
}

void FlatModel::copy_from(std::span<const float> host) {
  const torch::NoGradGuard no_gradient;
  values_.copy_(host_view(host));
  push_counters();
}

void FlatModel::add(std::span<const float> host) { add(host_view(host).to(values_.device())); }

void FlatModel::add(const Tensor& values) {
  const torch::NoGradGuard no_gradient;
  pull_counters();
  std::vector<Tensor> halves;
  for (const Tensor& variance : variances_) halves.push_back(variance * 0.5);
  values_.add_(values);
  for (std::size_t i = 0; i < halves.size(); ++i)
    torch::maximum_out(variances_[i], variances_[i], halves[i]);
  push_counters();
}

}  // namespace gossipd
