// Predicts a batch on all cores.
#include <iomanip>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "libiris.h"

void check(int code) {
  if (code) throw std::runtime_error(iris_error());
}

int main() {
  std::vector<float> rows(std::istream_iterator<float>(std::cin), {});
  const std::size_t n = rows.size() / iris_features(), outputs = iris_outputs();
  std::vector<float> margins(n * outputs), values(n * outputs);
  std::vector<int64_t> labels(n);
  check(iris_predict(rows.data(), n, margins.data(), values.data(), -1));
  check(iris_predict_labels(rows.data(), n, labels.data(), -1));
  std::cout << std::setprecision(9);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < outputs; ++k) std::cout << values[i * outputs + k] << ' ';
    std::cout << iris_class_name(labels[i]) << '\n';
  }
}
