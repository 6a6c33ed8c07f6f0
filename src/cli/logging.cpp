#include "cli/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <string_view>

#include "text/printable.h"

namespace levin::cli {
namespace {

class PrintableMessage : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const std::string text =
        text::printable({message.payload.data(), message.payload.size()}, "\n\t");
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<PrintableMessage>();
  }
};

}  // namespace

std::unique_ptr<spdlog::formatter> make_log_formatter() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PrintableMessage>('*').set_pattern("%H:%M:%S %^%l%$ %*");
  return formatter;
}

void set_up_logging(const std::string& level) {
  auto logger = spdlog::stderr_logger_mt("levin");
  logger->set_formatter(make_log_formatter());
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(logger);
}

}  // namespace levin::cli
