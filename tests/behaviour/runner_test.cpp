// Runs the cases of tests/behaviour/*.yaml; README.md there has the format.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace levin::behaviour {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

struct Case {
  std::string name;    // "file_case", as test names must be
  std::string broken;  // why the case itself cannot be run; empty when it can
  std::map<std::string, std::string> files;
  std::map<std::string, std::string> links;  // name -> what it leads to
  std::vector<std::string> run;
  std::string input;
  int exit = 0;
  std::vector<std::string> output, errors;  // fragments
  std::vector<std::string> output_lacks, errors_lack;
  std::string whole_output;
  bool has_whole_output = false;
  std::map<std::string, std::string> output_json;  // JSON pointer -> JSON text
  std::string output_to;                           // instead of a file that is looked at
  std::string errors_to;                           // "closed": no such stream at all
  std::vector<std::string> kept;                   // of `files`
  std::vector<std::string> absent;
  int signal = 0;  // to send when `signal_at` stands in the errors; 0: none
  std::string signal_at;
  std::string signal_when;  // or when this path exists
  int seconds = 120;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

using Texts = std::vector<std::string>;

// Text, or bytes in base64 under the tag !!binary.
std::string bytes_of(const YAML::Node& node) {
  if (node.Tag() != "tag:yaml.org,2002:binary") return node.as<std::string>();
  const std::vector<unsigned char> bytes = YAML::DecodeBase64(node.Scalar());
  return {bytes.begin(), bytes.end()};
}

Case read_case(const YAML::Node& node, const std::string& file) {
  static const std::set<std::string> kKeys = {
      "name",         "files",        "run",           "stdin",       "exit",
      "stdout",       "stderr",       "stdout_equals", "stdout_json", "absent",
      "seconds",      "kept",         "stdout_to",     "stderr_to",   "links",
      "stdout_lacks", "stderr_lacks", "signal",        "signal_at",   "signal_when"};
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    if (kKeys.count(key) == 0) throw YAML::Exception(entry.first.Mark(), "unknown key " + key);
  }
  Case one;
  one.name = file + "_" + node["name"].as<std::string>();
  for (const YAML::Node& word : node["run"]) one.run.push_back(bytes_of(word));
  for (const auto& file_entry : node["files"]) {
    one.files[file_entry.first.as<std::string>()] = bytes_of(file_entry.second);
  }
  if (node["links"]) one.links = node["links"].as<std::map<std::string, std::string>>();
  if (node["stdin"]) one.input = bytes_of(node["stdin"]);
  one.exit = node["exit"].as<int>(0);
  one.output = node["stdout"].as<Texts>(Texts());
  one.errors = node["stderr"].as<Texts>(Texts());
  one.output_lacks = node["stdout_lacks"].as<Texts>(Texts());
  one.errors_lack = node["stderr_lacks"].as<Texts>(Texts());
  one.has_whole_output = static_cast<bool>(node["stdout_equals"]);
  one.whole_output = node["stdout_equals"].as<std::string>("");
  if (node["stdout_json"]) {
    one.output_json = node["stdout_json"].as<std::map<std::string, std::string>>();
  }
  one.output_to = node["stdout_to"].as<std::string>("");
  one.errors_to = node["stderr_to"].as<std::string>("");
  one.kept = node["kept"].as<Texts>(Texts());
  one.absent = node["absent"].as<Texts>(Texts());
  static const std::map<std::string, int> kSignals = {
      {"", 0}, {"INT", SIGINT}, {"TERM", SIGTERM}, {"HUP", SIGHUP}};
  one.signal = kSignals.at(node["signal"].as<std::string>(""));
  one.signal_at = node["signal_at"].as<std::string>("");
  one.signal_when = node["signal_when"].as<std::string>("");
  one.seconds = node["seconds"].as<int>(120);
  return one;
}

std::vector<Case> read_cases() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(LEVIN_SOURCE_DIR "/tests/behaviour")) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Case> cases;
  for (const fs::path& file : files) {
    try {
      for (const YAML::Node& node : YAML::LoadFile(file.string())) {
        cases.push_back(read_case(node, file.stem().string()));
      }
    } catch (const YAML::Exception& e) {
      Case broken;
      broken.name = file.stem().string() + "_unreadable_" + std::to_string(cases.size());
      broken.broken = file.string() + ": " + e.what();
      cases.push_back(std::move(broken));
    }
  }
  return cases;
}

// A folder that is empty now and gone later.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(fs::path(testing::TempDir()) / ("levin_" + name + "_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string filled_in(std::string text, const fs::path& folder) {
  const std::pair<std::string, std::string> places[] = {{"{models}", LEVIN_SOURCE_DIR "/models"},
                                                        {"{evals}", LEVIN_SOURCE_DIR "/evals"},
                                                        {"{data}", LEVIN_SOURCE_DIR "/tests/data"},
                                                        {"{recipes}", LEVIN_SOURCE_DIR "/recipes"},
                                                        {"{tmp}", folder.string()}};
  for (const auto& [place, value] : places) {
    for (std::size_t at = text.find(place); at != std::string::npos;
         at = text.find(place, at + value.size())) {
      text.replace(at, place.size(), value);
    }
  }
  return text;
}

std::string content_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream content;
  content << stream.rdbuf();
  return content.str();
}

// The exit code, or -1 when the program was ended by a signal or by the limit.
int run_levin(const Case& one, const std::vector<std::string>& arguments, const fs::path& input,
              const fs::path& output, const fs::path& errors) {
  std::vector<std::string> words = {LEVIN_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  const pid_t child = ::fork();
  if (child == 0) {
    const auto redirect = [](const fs::path& file, int flags, int descriptor) {
      ::dup2(::open(file.c_str(), flags, 0600), descriptor);
    };
    redirect(input, O_RDONLY, STDIN_FILENO);
    redirect(output, O_WRONLY | O_CREAT, STDOUT_FILENO);
    if (errors == "closed") {
      ::close(STDERR_FILENO);
    } else {
      redirect(errors, O_WRONLY | O_CREAT, STDERR_FILENO);
    }
    ::execv(LEVIN_BINARY, pointers.data());
    ::_exit(127);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(one.seconds);
  int status = 0;
  bool signalled = one.signal == 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      break;
    }
    const bool now = one.signal_at.empty()
                         ? fs::exists(one.signal_when)
                         : content_of(errors).find(one.signal_at) != std::string::npos;
    if (!signalled && now) {
      ::kill(child, one.signal);
      signalled = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void check_json(const std::string& output, const std::map<std::string, std::string>& expected) {
  if (expected.empty()) return;
  const nlohmann::json json = nlohmann::json::parse(output, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << "output is not JSON:\n" << output;
  for (const auto& [pointer, text] : expected) {
    const nlohmann::json::json_pointer at(pointer);
    ASSERT_TRUE(json.contains(at)) << pointer << " in " << json.dump(1);
    // Plain YAML text that is no JSON is a string.
    nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
    if (value.is_discarded()) value = text;
    EXPECT_EQ(json.at(at), value) << pointer;
  }
}

class Behaviour : public testing::TestWithParam<Case> {};

TEST_P(Behaviour, Case) {
  Case one = GetParam();
  ASSERT_EQ(one.broken, "");
  const Folder folder(one.name);
  one.signal_when = filled_in(one.signal_when, folder.path());
  const Folder streams(one.name + "_streams");
  for (const auto& [name, content] : one.files) {
    fs::create_directories((folder.path() / name).parent_path());
    std::ofstream(folder.path() / name, std::ios::binary) << content;
  }
  for (const auto& [name, target] : one.links) {
    fs::create_directories((folder.path() / name).parent_path());
    fs::create_symlink(filled_in(target, folder.path()), folder.path() / name);
  }
  const fs::path input = streams.path() / "in";
  std::ofstream(input, std::ios::binary) << filled_in(one.input, folder.path());
  std::vector<std::string> arguments;
  for (const std::string& word : one.run) arguments.push_back(filled_in(word, folder.path()));

  const fs::path output_file =
      one.output_to.empty() ? streams.path() / "out" : fs::path(one.output_to);
  const fs::path errors_file =
      one.errors_to.empty() ? streams.path() / "err" : fs::path(one.errors_to);
  const int code = run_levin(one, arguments, input, output_file, errors_file);
  const std::string output = one.output_to.empty() ? content_of(output_file) : "";
  const std::string errors = one.errors_to.empty() ? content_of(errors_file) : "";
  SCOPED_TRACE("stdout:\n" + output + "\nstderr:\n" + errors);
  EXPECT_EQ(code, one.exit);
  for (const std::string& part : one.output) {
    EXPECT_THAT(output, HasSubstr(filled_in(part, folder.path())));
  }
  for (const std::string& part : one.errors) {
    EXPECT_THAT(errors, HasSubstr(filled_in(part, folder.path())));
  }
  for (const std::string& part : one.output_lacks) {
    EXPECT_THAT(output, Not(HasSubstr(filled_in(part, folder.path()))));
  }
  for (const std::string& part : one.errors_lack) {
    EXPECT_THAT(errors, Not(HasSubstr(filled_in(part, folder.path()))));
  }
  if (one.has_whole_output) {
    EXPECT_EQ(output, filled_in(one.whole_output, folder.path()));
  }
  check_json(output, one.output_json);
  for (const std::string& name : one.kept) {
    EXPECT_EQ(content_of(folder.path() / name), one.files.at(name)) << name;
  }
  for (const std::string& path : one.absent) {
    EXPECT_FALSE(fs::exists(filled_in(path, folder.path()))) << path;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Behaviour, testing::ValuesIn(read_cases()),
                         [](const auto& generated) { return generated.param.name; });

}  // namespace
}  // namespace levin::behaviour
