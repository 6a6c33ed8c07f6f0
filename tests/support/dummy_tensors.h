// The tensors of a configuration with deterministic random values, ready to be written, broken and
// written again. Needs levin_model.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "model/inventory.h"
#include "model/model.h"
#include "support/tiny_checkpoint.h"

namespace levin::test {

// All tensors that `config` (its quantization_config included) calls for.
inline std::vector<TestTensor> dummy_tensors(const nlohmann::json& config) {
  const TempFolder folder;
  write_file(folder / "config.json", config.dump());
  const auto checkpoint = model::open_checkpoint(folder.path(), model::LoadFormat::kDummy);
  std::vector<TestTensor> tensors;
  for (const checkpoint::TensorInfo& info : checkpoint->tensors()) {
    const TensorView view = checkpoint->view(info.name);
    tensors.push_back(
        {info.name, info.dtype, info.shape,
         std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size())});
  }
  return tensors;
}

// The tensor of that name; throws when there is none.
inline TestTensor& tensor_named(std::vector<TestTensor>& tensors, const std::string& name) {
  const auto place = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TestTensor& tensor) { return tensor.name == name; });
  if (place == tensors.end()) throw std::runtime_error("no tensor " + name);
  return *place;
}

inline void erase_tensor(std::vector<TestTensor>& tensors, const std::string& name) {
  tensors.erase(tensors.begin() + (&tensor_named(tensors, name) - tensors.data()));
}

}  // namespace levin::test
