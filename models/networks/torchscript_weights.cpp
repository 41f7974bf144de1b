// The weights of a TorchScript file where they lie: its tensors are views of the mapped file, read
// when they are copied, so that a model of any size is not in memory once more.
//
// LibTorch loads such a file whole. It also takes storages that are there already (torch.package
// shares them so), and that is the way in: once without data, for the module's classes, and then
// what the file says of its objects, over storages inside the mapping.
#include "models/networks/torchscript.h"

#include <ATen/MapAllocator.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/storage_context.h>
#include <torch/script.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "models/networks/flat_model.h"

namespace gossipd {

namespace {

using Reader = caffe2::serialize::PyTorchStreamReader;
using Storages = torch::jit::DeserializationStorageContext;

constexpr std::string_view tensors_folder = "data/";

// All of a file; written to, it changes in memory alone.
struct MappedFile {
  explicit MappedFile(const std::string& path)
      : bytes(std::filesystem::file_size(path)),
        data(at::MapAllocator::makeDataPtr(path, /*flags=*/0, bytes, nullptr)) {}
  std::size_t bytes;
  at::DataPtr data;
};

// A storage of [from, from + bytes) that keeps the mapping.
c10::Storage storage_in(const std::shared_ptr<MappedFile>& file, std::size_t from,
                        std::size_t bytes) {
  auto* keep = new std::shared_ptr<MappedFile>(file);
  at::DataPtr data(
      static_cast<char*>(file->data.get()) + from, keep,
      [](void* kept) { delete static_cast<std::shared_ptr<MappedFile>*>(kept); }, torch::kCPU);
  return {c10::Storage::use_byte_size_t(), bytes, std::move(data), /*allocator=*/nullptr,
          /*resizable=*/false};
}

// Every record of a tensor that lies in the file as it is in memory. One that does not (somebody
// has compressed it) is left to LibTorch, which reads it into memory.
std::shared_ptr<Storages> storages_of(Reader& reader, const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  auto out = std::make_shared<Storages>();
  for (const std::string& name : reader.getAllRecords()) {
    if (!name.starts_with(tensors_folder)) continue;
    const auto [record, bytes] = reader.getRecord(name);
    const std::size_t from = reader.getRecordOffset(name);
    if (from > file->bytes || bytes > file->bytes - from) continue;
    if (std::memcmp(static_cast<const char*>(file->data.get()) + from, record.get(), bytes) == 0)
      out->addStorage(name.substr(tensors_folder.size()), storage_in(file, from, bytes));
  }
  return out;
}

// The module of the file, with tensors inside the mapping. Throws where the file is damaged, and
// where its objects are made by code of their own (__setstate__) or of types that cannot be told
// apart here.
torch::jit::Module map_module(const std::string& path) {
  // What is drawn onto this device has shapes and no values: each tensor is read and dropped.
  const torch::jit::Module classes = torch::jit::load(path, torch::kMeta);
  const auto unit = classes._ivalue()->compilation_unit();
  const auto find_type = [&](const c10::QualifiedName& name) {
    const c10::TypePtr named = unit->get_type(name);
    return c10::StrongTypePtr(
        unit, named ? named : torch::jit::ScriptTypeParser().parseType(name.qualifiedName()));
  };
  const auto make_object = [](const at::StrongTypePtr& type, const torch::jit::IValue& state) {
    const auto cls = type.type_->expect<c10::ClassType>();
    if (cls->findMethod("__setstate__") != nullptr)
      throw std::invalid_argument("an object is made by its own __setstate__");
    const auto attributes = state.toGenericDict();
    auto object = c10::ivalue::Object::create(type, cls->numAttributes());
    for (std::size_t i = 0; i < cls->numAttributes(); ++i)
      object->setSlot(i, attributes.at(cls->getAttributeName(i)));
    return object;
  };
  Reader reader(path);
  const auto storages = storages_of(reader, path);
  return torch::jit::Module(torch::jit::readArchiveAndTensors(
                                "data", "", "", find_type, make_object, torch::Device(torch::kCPU),
                                reader, torch::jit::Unpickler::defaultTypeParser, storages)
                                .toObject());
}

torch::jit::Module map_or_load(const std::string& path) {
  try {
    return map_module(path);
  } catch (const std::exception&) {
    return torch::jit::load(path, torch::kCPU);  // whole
  }
}

}  // namespace

Result<Weights> read_torchscript_weights(const std::string& path) {
  try {
    Weights weights{path, {}, {}};
    // The rules are those of the model that is to take them: tied tensors are one, masks none.
    for (const ModelTensors::Named& kept : FlatModel::kept(tensors_of(map_or_load(path))))
      weights.tensors.emplace(
          kept.name,
          Weights::Tensor{
              kept.tensor.sizes().vec(),
              [tensor = kept.tensor](std::span<float> out) {
                const torch::NoGradGuard no_gradient;
                torch::from_blob(out.data(), tensor.sizes(), torch::kFloat32).copy_(tensor);
              },
              kept.tensor.is_floating_point() ? "" : c10::toString(kept.tensor.scalar_type())});
    return weights;
  } catch (const std::invalid_argument& error) {
    return Error{"bad-weights", path + ": its weights cannot be taken: " + error.what()};
  } catch (const std::exception& error) {
    return Error{"bad-weights", path + ": " + why_no_torchscript(path, error)};
  }
}

}  // namespace gossipd
