// net/http/pending_answer.h - a request that waits for its handler.
//
// Includes Asio: for server.cpp only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "net/http/message.h"

namespace gossipd {

// Shared by the waiting connection and the handler's HttpRespond, whichever lives longer.
struct Answer {
  explicit Answer(boost::asio::io_context& io)
      : ready(io, boost::asio::steady_timer::time_point::max()) {}
  std::optional<HttpResponse> response;
  boost::asio::steady_timer ready;

  void set(HttpResponse given) {
    if (response) return;
    response = std::move(given);
    ready.cancel();
  }
};

// Held by an HttpRespond; when its last copy ends without an answer, that is answered with 500.
struct Responder {
  explicit Responder(std::shared_ptr<Answer> answer_in) : answer(std::move(answer_in)) {}
  ~Responder() { answer->set(problem(500, "internal", "The request was not answered")); }
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;
  std::shared_ptr<Answer> answer;
};

}  // namespace gossipd
