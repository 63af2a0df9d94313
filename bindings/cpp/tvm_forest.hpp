// A model that `tvm-forest export` has compiled, loaded at run time. C++17, for Linux and macOS.
//
//   #include "libmodel.h"      // whose function says which types the model has
//   #include "tvm_forest.hpp"
//   tvm_forest::Model<decltype(tvm_forest_predict)> model("./libmodel.so");
//   std::vector<float> values = model.predict(rows, n);
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace tvm_forest {

/// What a library says of a call that fails, or why it cannot be loaded.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class Predict>
class Model;

/// A model, which any number of threads may use at once, and replace meanwhile.
///
/// Rows lie one behind the other; a missing value is NaN. `jobs` threads share out the rows of a
/// call, -1 for one on each core.
template <class Row, class Margin, class Value>
class Model<int(const Row *, std::int64_t, Margin *, Value *, int)> {
 public:
  using Rows = std::vector<Row>;

  /// Load a library. Throws `Error`.
  explicit Model(const std::string &path) : now_(std::make_shared<const Library>(path)) {}

  /// Let calls that begin from now on use another library, with the same columns and results.
  /// Calls in flight finish with the old one, which is unloaded after the last.
  void replace(const std::string &path) {
    auto next = std::make_shared<const Library>(path);
    const auto old = now();
    refuse_other(path, "columns", next->features, old->features);
    refuse_other(path, "outputs", next->outputs, old->outputs);
    refuse_other(path, "labels", next->labels, old->labels);
    refuse_other(path, "classes", next->classes, old->classes);
    std::lock_guard<std::mutex> lock(mutex_);
    now_.swap(next);
  }

  std::int64_t features() const { return now()->features; }
  std::int64_t outputs() const { return now()->outputs; }
  std::int64_t labels() const { return now()->labels; }
  std::int64_t classes() const { return now()->classes; }
  std::string feature_name(std::int64_t k) const { return now()->name("feature_name", k); }
  std::string class_name(std::int64_t k) const { return now()->name("class_name", k); }

  /// Probabilities of a classifier, else what the model predicts: (n, outputs).
  std::vector<Value> predict(const Rows &rows, std::size_t n, int jobs = 1) const {
    return both(rows, n, jobs).second;
  }

  /// What the trees add up to: (n, outputs).
  std::vector<Margin> margins(const Rows &rows, std::size_t n, int jobs = 1) const {
    return both(rows, n, jobs).first;
  }

  /// Margins and values of one call.
  std::pair<std::vector<Margin>, std::vector<Value>> both(const Rows &rows, std::size_t n,
                                                          int jobs = 1) const {
    const auto library = now();
    library->check_shape(rows.size(), n);
    const std::size_t size = n * static_cast<std::size_t>(library->outputs);
    std::pair<std::vector<Margin>, std::vector<Value>> found{std::vector<Margin>(size),
                                                             std::vector<Value>(size)};
    library->check(library->predict(rows.data(), static_cast<std::int64_t>(n), found.first.data(),
                                    found.second.data(), jobs));
    return found;
  }

  /// Numbers of the chosen classes: (n, labels).
  std::vector<std::int64_t> predict_labels(const Rows &rows, std::size_t n, int jobs = 1) const {
    const auto library = now();
    library->check_shape(rows.size(), n);
    std::vector<std::int64_t> found(n * static_cast<std::size_t>(library->labels));
    library->check(library->predict_labels(rows.data(), static_cast<std::int64_t>(n), found.data(), jobs));
    return found;
  }

 private:
  struct Library {
    void *handle;
    int (*predict)(const Row *, std::int64_t, Margin *, Value *, int) = nullptr;
    int (*predict_labels)(const Row *, std::int64_t, std::int64_t *, int) = nullptr;
    const char *(*error)() = nullptr;
    std::int64_t features = 0, outputs = 0, labels = 0, classes = 0;

    explicit Library(const std::string &path) : handle(open(path)) {
      try {
        const char *(*types)() = nullptr;
        find("types", types), find("error", error), find("predict", predict);
        find("predict_labels", predict_labels);
        const std::string wanted = std::string(name_of<Row>()) + ' ' + name_of<Margin>() + ' ' + name_of<Value>();
        if (wanted != types())
          throw Error(path + ": types of rows, margins and values: '" + types() + "', and '" + wanted +
                      "' in this program; include the header of the library");
        int (*runs)() = nullptr;
        find("check", runs), check(runs());
        features = count("features"), outputs = count("outputs");
        labels = count("labels"), classes = count("classes");
      } catch (...) {
        dlclose(handle);
        throw;
      }
    }
    Library(const Library &) = delete;
    Library &operator=(const Library &) = delete;
    ~Library() { dlclose(handle); }

    /// Load by a name that nobody has used: by a known one the loader gives what it has loaded
    /// before, even if there is another file by now.
    static void *open(const std::string &path) {
      namespace fs = std::filesystem;
      std::error_code failed;
      std::string folder = (fs::temp_directory_path() / "tvm_forest_XXXXXX").string();
      if (!mkdtemp(folder.data())) throw Error(folder + ": " + std::strerror(errno));
      const fs::path link = fs::path(folder) / "model";
      fs::create_symlink(fs::absolute(path), link, failed);
      void *made = failed ? nullptr : dlopen(link.c_str(), RTLD_NOW | RTLD_LOCAL);
      const char *why = failed || made ? nullptr : dlerror();
      const std::string text = path + ": " + (why ? std::string(why) : failed.message());
      fs::remove_all(folder, failed);
      if (!made) throw Error(text);
      return made;
    }

    template <class Function>
    void find(const char *name, Function &to) const {
      void *at = dlsym(handle, (std::string("tvm_forest_") + name).c_str());
      if (!at) throw Error(std::string("the library has no function tvm_forest_") + name);
      std::memcpy(&to, &at, sizeof at);
    }

    std::int64_t count(const char *name) const {
      std::int64_t (*function)() = nullptr;
      find(name, function);
      return function();
    }

    std::string name(const char *of, std::int64_t k) const {
      const char *(*function)(std::int64_t) = nullptr;
      find(of, function);
      const char *found = function(k);
      return found ? found : "";
    }

    void check(int code) const {
      if (code) throw Error(error());
    }

    void check_shape(std::size_t size, std::size_t n) const {
      const auto width = static_cast<std::size_t>(features);
      if (n ? size / n == width && size % n == 0 : size == 0) return;
      std::string text = "rows: " + std::to_string(size) + " numbers for " + std::to_string(n) + " rows";
      if (n && size % n == 0) text += ", which have " + std::to_string(size / n) + " columns";
      throw std::invalid_argument(text + "; the model has " + std::to_string(width) + " columns");
    }
  };

  template <class Number>
  static const char *name_of() {
    return std::is_same<Number, float>::value ? "float32" : "float64";
  }

  static void refuse_other(const std::string &path, const char *what, std::int64_t next, std::int64_t old) {
    if (next != old)
      throw Error(path + ": " + std::to_string(next) + ' ' + what + ", and the model in use has " +
                  std::to_string(old));
  }

  std::shared_ptr<const Library> now() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return now_;
  }

  mutable std::mutex mutex_;
  std::shared_ptr<const Library> now_;
};

}  // namespace tvm_forest
