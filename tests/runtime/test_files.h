// Tensors of a safetensors file, for tests that compare against stored results.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/files.h"
#include "core/tensor.h"

namespace levin::testing {

class TensorFile {
 public:
  explicit TensorFile(const std::filesystem::path& path) : file_(path) {
    const auto header = checkpoint::parse_safetensors_header(file_.bytes(), path.string());
    for (const checkpoint::StoredTensor& tensor : header.tensors) {
      tensors_[tensor.name] = {
          tensor.dtype, tensor.shape,
          file_.bytes().subspan(header.data_start + tensor.begin, tensor.end - tensor.begin)};
    }
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }
  const TensorView& view(const std::string& name) const { return tensors_.at(name); }
  std::vector<float> floats(const std::string& name) const { return to_float(view(name), name); }
  std::vector<int32_t> ids(const std::string& name) const {
    const auto values = view(name).as<int32_t>();
    return {values.begin(), values.end()};
  }

 private:
  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace levin::testing
