// Compares a model with what Python predicts, which expected.txt holds as bits.
//
//   ./test [folder of another model with the same columns and results, to turn to]
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "libmodel.h"
#include "tvm_forest.hpp"

using Model = tvm_forest::Model<decltype(tvm_forest_predict)>;

template <class Row, class Margin, class Value>
struct Types {
  explicit Types(int (*)(const Row *, std::int64_t, Margin *, Value *, int)) {}

  struct Expected {
    std::size_t features, outputs, labels, n, ulps;
    std::vector<Row> rows;
    std::vector<Margin> margins;
    std::vector<Value> values;
    std::vector<std::int64_t> classes;

    explicit Expected(const std::string &folder) {
      std::ifstream file(folder + "/expected.txt");
      if (!(file >> features >> outputs >> labels >> n >> ulps)) throw std::runtime_error("no expected.txt");
      for (std::size_t i = 0; i < n; ++i) {
        read(file, features, rows), read(file, outputs, margins), read(file, outputs, values);
        for (std::size_t k = 0; k < labels; ++k) classes.emplace_back(), file >> classes.back();
      }
    }

    template <class Number>
    static void read(std::istream &from, std::size_t count, std::vector<Number> &to) {
      std::string word;
      for (std::size_t k = 0; k < count && from >> word; ++k) {
        const std::uint64_t wide = std::stoull(word, nullptr, 16);
        const auto narrow = static_cast<std::uint32_t>(wide);
        Number number;
        std::memcpy(&number, sizeof number == 4 ? static_cast<const void *>(&narrow) : &wide, sizeof number);
        to.push_back(number);
      }
    }
  };
};

template <class Number>
bool same(const std::vector<Number> &a, const std::vector<Number> &b, std::size_t ulps = 0) {
  for (std::size_t i = 0; i < a.size() && a.size() == b.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof a[i]) && !(std::isnan(a[i]) && std::isnan(b[i])) &&
        !(std::fabs(a[i] - b[i]) <= static_cast<double>(ulps) * std::fabs(b[i]) * 2.3e-16))
      return false;
  return a.size() == b.size();
}

void require(bool holds, const char *what) {
  if (!holds) throw std::runtime_error(what);
  std::cout << "ok: " << what << '\n';
}

template <class Error, class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error &error) {
    return error.what();
  }
  return "no error";
}

bool is_mapped(const std::string &path) {
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  return text.str().find(path) != std::string::npos;
}

template <class Kinds>
void run(const Kinds &, const std::string &other) {
  namespace fs = std::filesystem;
  using Expected = typename Kinds::Expected;
  const std::string suffix = fs::exists("libmodel.so") ? ".so" : ".dylib";
  const Expected e("."), next(other);
  Model model("libmodel" + suffix);
  require(model.features() == static_cast<std::int64_t>(e.features), "the number of columns");
  const auto [margins, values] = model.both(e.rows, e.n);
  require(same(margins, e.margins), "margins have the bits of Python");
  require(same(values, e.values, e.ulps), "values have the bits of Python");
  require(same(model.margins(e.rows, e.n, -1), e.margins), "margins on all cores");
  if (e.labels) require(model.predict_labels(e.rows, e.n) == e.classes, "labels are those of Python");
  else require(!message_of<tvm_forest::Error>([&] { model.predict_labels(e.rows, e.n); }).find("the model has no"),
               "a model without classes says so");
  bool equal = true;
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{7}, e.n}) {
    const std::vector<typename decltype(e.rows)::value_type> rows(e.rows.begin(), e.rows.begin() + static_cast<std::ptrdiff_t>(n * e.features));
    auto wanted = e.margins;
    wanted.resize(n * e.outputs);
    equal = equal && same(model.margins(rows, n), wanted);
  }
  require(equal, "batches of 0, 1, 7 and all rows");

  auto short_rows = e.rows;
  short_rows.resize(e.n * (e.features - 1));
  const std::string told = message_of<std::invalid_argument>([&] { model.predict(short_rows, e.n); });
  require(told.find("which have " + std::to_string(e.features - 1) + " columns") != std::string::npos, told.c_str());
  const std::string missing = message_of<tvm_forest::Error>([] { Model("./no such library.so"); });
  require(missing.find("no such library.so") != std::string::npos, missing.c_str());
  const std::string jobs = message_of<tvm_forest::Error>([&] { model.predict(e.rows, e.n, 0); });
  require(jobs == "n_jobs is neither positive nor -1", jobs.c_str());

  const fs::path folder = fs::temp_directory_path() / ("tvm_forest_test_" + std::to_string(getpid()));
  fs::create_directory(folder);
  const fs::path file = fs::canonical(folder) / "turned.so";
  fs::copy_file("libmodel" + suffix, file);
  Model turned(file.string());
  const auto changed = Model(other + "/libmodel" + suffix).margins(e.rows, e.n);
  require(is_mapped(file) || suffix != ".so", "a library is loaded");
  std::atomic<int> calls{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i, ++calls) {
        const auto found = turned.margins(e.rows, e.n);
        if (!same(found, e.margins) && !same(found, changed)) ++wrong;
      }
    });
  while (calls < 100) std::this_thread::yield();
  // The file is replaced while its library is in use; the new one has the same name.
  fs::copy_file(other + "/libmodel" + suffix, folder / "new");
  fs::rename(folder / "new", file);
  turned.replace(file.string());
  for (auto &thread : threads) thread.join();
  require(wrong == 0, "threads predict while the model is replaced");
  require(same(turned.margins(next.rows, next.n), next.margins), "the new model has taken its place");
  require(!is_mapped(file.string() + " (deleted)"), "the old library is unloaded");
  fs::remove_all(folder);
}

int main(int count, char **words) {
  try {
    run(Types(static_cast<decltype(&tvm_forest_predict)>(nullptr)), count > 1 ? words[1] : ".");
  } catch (const std::exception &error) {
    std::cerr << "failed: " << error.what() << '\n';
    return 1;
  }
  std::cout << "all tests passed\n";
}
