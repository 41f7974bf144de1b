// Any text as a job: refused with words, or a job whose canonical text means the same job.
#include <algorithm>

#include "models/job/job.h"
#include "models/job/schedule.h"

using namespace gossipd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto job = Job::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!job) {
    const std::string& text = job.error().text;
    GOSSIPD_ASSERT(text.starts_with("fuzz"));
    GOSSIPD_ASSERT(std::none_of(text.begin(), text.end(), [](char c) {
      return c != '\n' && static_cast<unsigned char>(c) < 0x20;
    }));
    return 0;
  }
  const auto again = Job::parse(job->canonical_text(), "fuzz");
  GOSSIPD_ASSERT(again && *again == *job && again->hash() == job->hash());
  for (const Samples at : {Samples{0}, job->schedule.warmup_samples, job->budget_samples}) {
    const double rate = learning_rate_at(*job, at);
    GOSSIPD_ASSERT(rate >= 0 && rate <= learning_rate_peak(*job) * (1 + 1e-12));
  }
  return 0;
}
