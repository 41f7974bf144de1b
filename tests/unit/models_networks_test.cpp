// The built-in networks, the losses and the flat vector of models from outside: shapes, counts,
// figures by hand.
#include <torch/torch.h>
// Torch brings a CHECK of its own; doctest's has to win.
#undef CHECK

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>

#include "models/descent/optimizer.h"
#include "models/networks/flat_model.h"
#include "models/networks/loss.h"

using namespace gossipd;
using torch::Tensor;

namespace {

using Kind = ModelSpec::Kind;

std::shared_ptr<Network> network_of(const ModelSpec& model, const NetworkPorts& ports) {
  return make_network(model, ports, 1);
}

std::int64_t trained_floats(const ModelSpec& model, const NetworkPorts& ports) {
  FlatModel flat(network_of(model, ports)->tensors(), FlatModel::Gradient::no);
  return flat.trained().numel();
}

const ModelSpec small_vit{.kind = Kind::vit, .patch = 7, .dim = 32, .depth = 2, .heads = 4};
const ModelSpec small_gpt{.kind = Kind::gpt, .dim = 32, .depth = 2, .heads = 4};

// The loss on one batch after `steps` steps of AdamW on it.
double overfit(Network& network, const Tensor& inputs, const Tensor& targets, int steps) {
  FlatModel flat(network.tensors());
  const OptimizerSpec spec{.kind = OptimizerSpec::Kind::adamw, .learning_rate = 3e-3};
  OptimizerState state;
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    const Tensor value =
        loss_of(LossSpec::Kind::cross_entropy, network, network.forward(inputs), targets);
    value.backward();
    loss = value.item<double>();
    optimizer_step(
        spec, spec.learning_rate,
        {flat.trained().data_ptr<float>(), static_cast<std::size_t>(flat.trained().numel())}, state,
        {flat.gradient().data_ptr<float>(), static_cast<std::size_t>(flat.gradient().numel())});
  }
  return loss;
}

// Along the gradient itself the loss falls by rate · |gradient|².
void check_gradient(Network& network, const Tensor& inputs, const Tensor& targets) {
  FlatModel flat(network.tensors());
  const auto loss = [&] {
    return loss_of(LossSpec::Kind::cross_entropy, network, network.forward(inputs), targets);
  };
  const Tensor before = loss();
  before.backward();
  const torch::NoGradGuard no_gradient;
  const double square = flat.gradient().pow(2).sum().item<double>();
  REQUIRE(square > 0);
  const double rate = 0.002 / std::sqrt(square);
  flat.trained().sub_(flat.gradient(), rate);
  const double fall = before.item<double>() - loss().item<double>();
  CHECK(fall == doctest::Approx(rate * square).epsilon(0.1));
}

Tensor images(std::int64_t batch, std::int64_t channels, std::int64_t extent) {
  torch::manual_seed(7);
  return torch::randn({batch, channels, extent, extent});
}

Tensor tokens(std::int64_t batch, std::int64_t length, std::int64_t vocabulary) {
  torch::manual_seed(7);
  return torch::randint(0, vocabulary, {batch, length}, torch::kInt64);
}

}  // namespace

TEST_CASE("The known networks have the known numbers of parameters") {
  CHECK(trained_floats({.kind = Kind::resnet20}, {{3, 32, 32}, 10}) == 272'474);  // 0.27 M
  CHECK(trained_floats({.kind = Kind::resnet18}, {{3, 224, 224}, 1000}) == 11'689'512);
  CHECK(trained_floats({.kind = Kind::resnet50}, {{3, 224, 224}, 1000}) == 25'557'032);
  // Of a layer 12·dim² + 13·dim; embeddings of tokens and positions; the last norm.
  CHECK(trained_floats({.kind = Kind::gpt, .dim = 64, .depth = 3, .heads = 4}, {{100}, 256}) ==
        3 * (12 * 64 * 64 + 13 * 64) + (256 + 100) * 64 + 2 * 64);
}

TEST_CASE("Every family answers with one row per sample, or per token") {
  const torch::NoGradGuard no_gradient;
  using Shape = std::vector<std::int64_t>;
  const auto shape_of = [](const ModelSpec& model, const NetworkPorts& ports,
                           const Tensor& inputs) {
    return network_of(model, ports)->forward(inputs).sizes().vec();
  };
  CHECK(shape_of({.kind = Kind::mlp, .hidden = {8}}, {{3, 8, 8}, 5}, images(2, 3, 8)) ==
        Shape{2, 5});
  CHECK(shape_of({.kind = Kind::resnet20}, {{3, 32, 32}, 7}, images(2, 3, 32)) == Shape{2, 7});
  CHECK(shape_of({.kind = Kind::resnet18}, {{1, 64, 64}, 7}, images(2, 1, 64)) == Shape{2, 7});
  CHECK(shape_of({.kind = Kind::resnet50}, {{3, 64, 64}, 7}, images(1, 3, 64)) == Shape{1, 7});
  CHECK(shape_of(small_vit, {{1, 28, 28}, 10}, images(2, 1, 28)) == Shape{2, 10});
  CHECK(shape_of(small_gpt, {{16}, 50}, tokens(2, 16, 50)) == Shape{2, 16, 50});
}

TEST_CASE("The small cnn computes what its layers say, of grey images and of coloured ones") {
  for (const std::int64_t channels : {1, 3}) {
    const ModelSpec model{.kind = Kind::cnn, .hidden = {6}, .width = 4};
    const auto network = network_of(model, {{channels, 20, 28}, 5});
    torch::manual_seed(7);
    const Tensor inputs = torch::randn({3, channels, 20, 28}), weights = torch::randn({3, 5});
    network->forward(inputs).mul(weights).sum().backward();

    std::map<std::string, Tensor> of;
    for (const auto& [name, parameter] : network->tensors().parameters)
      of[name] = parameter.detach().clone().requires_grad_();
    Tensor x = torch::relu(torch::conv2d(inputs, of["conv1.weight"], of["conv1.bias"]));
    x = torch::relu(torch::conv2d(torch::max_pool2d(x, 2), of["conv2.weight"], of["conv2.bias"]));
    x = torch::max_pool2d(x, 2).flatten(1);
    x = torch::relu(torch::linear(x, of["head.linear1.weight"], of["head.linear1.bias"]));
    x = torch::linear(x, of["head.linear2.weight"], of["head.linear2.bias"]);
    x.mul(weights).sum().backward();

    CHECK(torch::allclose(network->forward(inputs), x, 1e-4, 1e-5));
    {
      const torch::NoGradGuard evaluation;
      CHECK(torch::allclose(network->forward(inputs), x, 1e-4, 1e-5));
    }
    for (const auto& [name, parameter] : network->tensors().parameters) {
      CAPTURE(name);
      CHECK(torch::allclose(parameter.grad(), of[name].grad(), 1e-4, 1e-4));
    }
  }
}

TEST_CASE(
    "The initial parameters of each family follow from the seed alone, norms begin as identity") {
  for (const auto& [model, ports] :
       {std::pair<ModelSpec, NetworkPorts>{{.kind = Kind::resnet20}, {{3, 32, 32}, 10}},
        {small_vit, {{1, 28, 28}, 10}},
        {small_gpt, {{16}, 50}}}) {
    torch::manual_seed(1);
    const auto first = make_network(model, ports, 5);
    torch::manual_seed(2);
    const auto second = make_network(model, ports, 5);
    const auto third = make_network(model, ports, 6);
    FlatModel a(first->tensors()), b(second->tensors()), c(third->tensors());
    CHECK(torch::equal(a.trained(), b.trained()));
    CHECK(!torch::equal(a.trained(), c.trained()));
    int norms = 0;
    for (const auto& [name, tensor] : first->tensors().parameters)
      if (name.find("norm") != std::string::npos && name.ends_with(".weight"))
        norms += (tensor == 1).all().item<bool>();
    CHECK(norms >= 5);
  }
}

TEST_CASE("The gradient of each family is that of its loss") {
  torch::manual_seed(3);
  const Tensor labels = torch::randint(0, 10, {8}, torch::kInt64);
  check_gradient(*network_of({.kind = Kind::resnet20}, {{1, 16, 16}, 10}), images(8, 1, 16),
                 labels);
  check_gradient(*network_of(small_vit, {{1, 28, 28}, 10}), images(8, 1, 28), labels);
  check_gradient(*network_of(small_gpt, {{12}, 20}), tokens(4, 12, 20),
                 tokens(4, 12, 20).roll(-1, 1));
}

TEST_CASE("Each family can learn a batch by heart") {
  torch::manual_seed(3);
  const Tensor labels = torch::randint(0, 10, {8}, torch::kInt64);
  CHECK(overfit(*network_of({.kind = Kind::resnet20}, {{1, 16, 16}, 10}), images(8, 1, 16), labels,
                25) < 0.1);
  CHECK(overfit(*network_of(small_vit, {{1, 28, 28}, 10}), images(8, 1, 28), labels, 60) < 0.1);
  CHECK(overfit(*network_of(small_gpt, {{12}, 20}), tokens(4, 12, 20),
                tokens(4, 12, 20).roll(-1, 1), 150) < 0.3);
}

TEST_CASE("A token's row says nothing of the tokens after it") {
  const torch::NoGradGuard no_gradient;
  const auto gpt = network_of(small_gpt, {{8}, 20});
  Tensor text = tokens(1, 8, 20);
  const Tensor before = gpt->forward(text);
  text[0][5] = (text[0][5].item<std::int64_t>() + 1) % 20;
  const Tensor after = gpt->forward(text);
  CHECK(torch::allclose(before.narrow(1, 0, 5), after.narrow(1, 0, 5)));
  CHECK(!torch::allclose(before.narrow(1, 5, 3), after.narrow(1, 5, 3)));
}

TEST_CASE("The losses are those of the formulas") {
  Network& none = *network_of({.kind = Kind::mlp, .hidden = {}}, {{1, 1, 1}, 2});
  const Tensor logits = torch::tensor({{0.0f, std::log(3.0f)}, {std::log(4.0f), 0.0f}});
  CHECK(loss_of(LossSpec::Kind::cross_entropy, none, logits, torch::tensor({1, 1}, torch::kInt64))
            .item<double>() == doctest::Approx((std::log(4.0 / 3) + std::log(5.0)) / 2));
  CHECK(loss_of(LossSpec::Kind::mse, none, torch::tensor({{1.0f}, {4.0f}}),
                torch::tensor({3.0f, 4.0f}))
            .item<double>() == doctest::Approx(2.0));
  // A logit of log 3 is a probability of 3/4.
  const Tensor logit = torch::full({2, 1}, std::log(3.0f));
  const double want = -(std::log(0.75) + std::log(0.25)) / 2;
  CHECK(loss_of(LossSpec::Kind::bce, none, logit, torch::tensor({1.0f, 0.0f})).item<double>() ==
        doctest::Approx(want));
  CHECK(loss_of(LossSpec::Kind::bce, none, logit, torch::tensor({1, 0}, torch::kInt64))
            .item<double>() == doctest::Approx(want));
}

TEST_CASE(
    "An evaluation counts what is right, what is among the five likeliest, and the perplexity of "
    "tokens") {
  Score classes(LossSpec::Kind::cross_entropy, 8);
  // 7 is likeliest, then 6, 5, 4, 3
  const Tensor logits = torch::arange(8, torch::kFloat32).repeat({4, 1});
  classes.add(0.5, logits, torch::tensor({7, 6, 3, 2}, torch::kInt64));
  classes.add(2.0, logits.narrow(0, 0, 1), torch::tensor({7}, torch::kInt64));
  const Figures figures = classes.figures();
  CHECK(figures.loss == doctest::Approx((4 * 0.5 + 2.0) / 5));
  CHECK(figures.accuracy.value() == doctest::Approx(0.4));
  CHECK(figures.top5_accuracy.value() == doctest::Approx(0.8));
  CHECK(!figures.perplexity);
  CHECK(!figures.tokens);

  Score text(LossSpec::Kind::cross_entropy, 4);
  text.add(std::log(8.0), torch::zeros({2, 3, 4}), torch::zeros({2, 3}, torch::kInt64));
  CHECK(text.figures().perplexity.value() == doctest::Approx(8.0));
  CHECK(!text.figures().top5_accuracy);

  Score own(LossSpec::Kind::model, 4);
  own.add(1.5, torch::zeros({2, 3, 4}), torch::ones({2, 3}, torch::kInt64));
  CHECK(own.figures().tokens);
  CHECK(!own.figures().perplexity);
  Figures more_right = own.figures();
  more_right.loss = 1.6;
  more_right.accuracy = 1.0;
  CHECK(!more_right.is_better_than(own.figures()));

  Score numbers(LossSpec::Kind::mse, 0);
  numbers.add(0.25, torch::zeros({2, 1}), torch::zeros({2}));
  CHECK(!numbers.figures().accuracy);
}

TEST_CASE("Accuracy is of scores for all classes, or of every one of several yes and no") {
  const Tensor targets = torch::tensor({0, 1, 1, 0}, torch::kInt64);
  for (const std::int64_t outputs : {1, 128}) {  // one logit, an embedding
    CAPTURE(outputs);
    Score own(LossSpec::Kind::model, 2);
    own.add(1.0, torch::zeros({4, outputs}), targets);
    CHECK(!own.figures().accuracy);
    Figures better = own.figures();
    better.loss = 0.5;
    CHECK(better.is_better_than(own.figures()));
  }
  Score scores(LossSpec::Kind::model, 2);
  scores.add(1.0, torch::tensor({{1.0, 0.0}, {0.0, 1.0}, {1.0, 0.0}, {1.0, 0.0}}), targets);
  CHECK(scores.figures().accuracy.value() == doctest::Approx(0.75));

  Score several(LossSpec::Kind::bce, 2);
  several.add(0.1, torch::ones({2, 3}), torch::tensor({{1, 1, 0}, {1, 1, 1}}, torch::kInt64));
  CHECK(several.figures().accuracy.value() == doctest::Approx(5.0 / 6));
}

TEST_CASE("Outputs that do not fit the loss are refused in words") {
  using Loss = LossSpec::Kind;
  const Tensor labels = torch::zeros({2}, torch::kInt64);
  CHECK(!fit_error(Loss::cross_entropy, torch::zeros({2, 10}), labels, 10));
  CHECK(fit_error(Loss::cross_entropy, torch::zeros({2, 9}), labels, 10)
            .value()
            .find("10 classes, the model has 9 outputs") != std::string::npos);
  CHECK(fit_error(Loss::cross_entropy, torch::zeros({2}), labels, 10));
  CHECK(fit_error(Loss::cross_entropy, torch::zeros({2, 10}), torch::zeros({2}), 0));
  CHECK(fit_error(Loss::cross_entropy, torch::zeros({2, 10}, torch::kInt64), labels, 10));
  CHECK(!fit_error(Loss::mse, torch::zeros({2, 1}), torch::zeros({2}), 0));
  CHECK(fit_error(Loss::mse, torch::zeros({2, 3}), torch::zeros({2}), 0));
  CHECK(fit_error(Loss::mse, torch::zeros({2, 1}), labels, 10));
  CHECK(!fit_error(Loss::bce, torch::zeros({2, 1}), labels, 2));
  CHECK(fit_error(Loss::bce, torch::zeros({2, 1}), labels, 3));
}

TEST_CASE("Tensors that share their memory stay one parameter, with the sum of both gradients") {
  const Tensor shared = torch::ones({3}, torch::requires_grad());
  Tensor other = shared.detach().requires_grad_();
  FlatModel flat(ModelTensors{{{"a", shared}, {"b", other}}, {}});
  REQUIRE(flat.trained().numel() == 3);
  (shared * 2 + other * 3).sum().backward();
  CHECK((flat.gradient() == 5).all().item<bool>());
}

TEST_CASE(
    "What is not trained travels as a statistic, masks stay local, constants with infinities stay "
    "outside") {
  Tensor frozen = torch::ones({2}).requires_grad_(false);
  const ModelTensors tensors{
      {{"w", torch::ones({2}, torch::requires_grad())}, {"frozen", frozen}},
      {{"mask", torch::ones({4}, torch::kBool)}, {"infinite", torch::full({3}, -INFINITY)}}};
  const FlatModel flat(tensors);
  std::vector<std::string> got;
  for (const Segment& segment : flat.schema().segments())
    got.push_back(segment.name + " " + std::to_string(static_cast<int>(segment.kind)));
  const std::vector<std::string> want{"w 0", "frozen 1", "mask 2"};
  CHECK(got == want);
}

TEST_CASE("Tensors of any size begin at multiples of 16 bytes, and nothing moves between them") {
  std::vector<ModelTensors::Named> parameters, buffers;
  for (const int size : {1, 3, 4, 5, 7, 33}) {
    parameters.push_back({"p" + std::to_string(size), torch::ones({size}, torch::requires_grad())});
    buffers.push_back({"b" + std::to_string(size), torch::ones({size})});
  }
  FlatModel flat({parameters, buffers});
  const auto is_aligned = [](const Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 16 == 0;
  };
  std::vector<bool> is_gap(flat.schema().floats(), true);
  for (const Segment& segment : flat.schema().segments())
    std::fill_n(is_gap.begin() + static_cast<std::ptrdiff_t>(segment.offset), segment.size, false);
  for (const auto& [name, tensor] : parameters) {
    CHECK_MESSAGE(is_aligned(tensor), name);
    CHECK_MESSAGE(is_aligned(tensor.grad()), name);
    tensor.sum().backward();
  }
  for (const auto& [name, tensor] : buffers) CHECK_MESSAGE(is_aligned(tensor), name);
  const torch::NoGradGuard no_gradient;
  flat.trained().add_(flat.gradient());
  std::vector<float> model(flat.schema().floats());
  flat.copy_to(model);
  CHECK(std::ranges::count(is_gap, true) == 2 * (3 + 1 + 3 + 1) + 3);
  for (std::size_t i = 0; i < model.size(); ++i)
    if (is_gap[i]) CHECK(model[i] == 0);
}

TEST_CASE("Tensors that cannot be exchanged are refused by name") {
  const auto reason = [](const ModelTensors& tensors) -> std::string {
    try {
      FlatModel flat(tensors);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  const ModelTensors::Named weight{"w", torch::ones({2}, torch::requires_grad())};
  CHECK(
      reason({{{"half", torch::ones({2}, torch::dtype(torch::kFloat16).requires_grad(true))}}, {}})
          .find("'half'") != std::string::npos);
  const ModelTensors::Named state{"variance.w", torch::ones({2}, torch::requires_grad())};
  CHECK(reason({{weight, state}, {}}).find("rename the module") != std::string::npos);
  CHECK(reason({{state}, {}}).empty());
  CHECK(reason({{weight}, {{"wide", torch::ones({2}, torch::kFloat64)}}}).find("'wide'") !=
        std::string::npos);
  CHECK(reason({{weight}, {{"large", torch::full({2}, 1 << 25, torch::kInt64)}}}).find("'large'") !=
        std::string::npos);
  CHECK(reason({{{"frozen", torch::ones({2})}}, {}}).find("no parameters") != std::string::npos);
}

TEST_CASE("A running variance stays positive whatever a neighbour's was") {
  torch::nn::BatchNorm1d norm(4);
  FlatModel flat(tensors_of(*norm));
  std::vector<float> update(flat.schema().floats(), 0.0f);
  const auto& variance = flat.schema().segments()[3];
  REQUIRE(variance.name == "running_var");
  update[variance.offset] = -5.0f;
  update[variance.offset + 1] = -0.25f;
  flat.add(update);
  CHECK(norm->running_var[0].item<float>() == 0.5f);
  CHECK(norm->running_var[1].item<float>() == 0.75f);
}
