// Compares a checkpoint's catalogue with what its configuration and quantization metadata promise,
// without reading data: what is missing, surplus, of the wrong shape or type, or stored in another
// format than the metadata says.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "core/error.h"
#include "model/config.h"
#include "model/model.h"

namespace levin::model {

struct Audit {
  // Each a complete error; experts of one layer with the same fault are one entry.
  std::vector<ErrorParts> problems;
  // Tensors of other modalities that a multimodal wrapper holds; not used by the language model.
  int64_t other_modality_tensors = 0;
  // The configuration has an MTP head, the checkpoint has none of its tensors.
  bool mtp_absent = false;
};

Audit audit(const Config& config, const checkpoint::Checkpoint& checkpoint,
            const BindOptions& options = {});

// What is odd about a checkpoint but harmless, one sentence each; for logs and `levin inspect`.
std::vector<std::string> notes_of(const Config& config, const checkpoint::Checkpoint& checkpoint);

}  // namespace levin::model
