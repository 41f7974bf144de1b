#include "tools/lab/references/registry.h"

namespace gossipd::lab {

const std::vector<StrategyEntry>& reference_strategies() {
  static const std::vector<StrategyEntry> entries = {
      {"ad-psgd", "asynchronous, atomic averaging of random pairs", "Lian et al., ICML 2018",
       make_ad_psgd},
      {"adaptive-gossip", "model to a random machine when it has changed enough",
       "Ho, Wu, Liu, CCGRID 2018", make_adaptive_gossip},
      {"asgd", "parameter server, every gradient as it comes", "Dean et al., NIPS 2012", make_asgd},
      {"dana", "parameter server, workers are sent where the others' momentum leads",
       "Hakimi et al., 2019", make_dana},
      {"dbs-sgd", "parameter server, each machine's batch by its speed", "Ji et al., 2019",
       make_dbs_sgd},
      {"dc-asgd", "parameter server, late gradients compensated by a cheap curvature",
       "Zheng et al., ICML 2017", make_dc_asgd},
      {"diloco", "H local steps, then an outer Nesterov step", "Douillard et al., 2023",
       make_diloco},
      {"easgd", "local models tied to a server's by an elastic",
       "Zhang, Choromanska, LeCun, NIPS 2015", make_easgd},
      {"eventgrad", "ring, a tensor is sent when its norm has moved", "Ghosh, Aravena, Gupta, 2022",
       make_eventgrad},
      {"gossip-sgd", "model to a random machine every so many steps", "Jin et al., 2016",
       make_gossip_sgd},
      {"lc-asgd", "parameter server, late gradients scaled by the forecast loss",
       "Li et al., ICPP 2020", make_lc_asgd},
      {"local-sgd", "H local steps, then an average; H fixed or by the quadratic rule",
       "Stich, ICLR 2019; Gu et al., ICLR 2024", make_local_sgd},
      {"noloco", "H local steps, then an outer step with a random partner",
       "Kolehmainen et al., 2025", make_noloco},
      {"smega2", "parameter server, workers are sent its model N updates ahead",
       "Cohen, Hakimi, Schuster, ICPP 2022", make_smega2},
      {"softsync", "parameter server, waits for N/n gradients, rate by staleness",
       "Gupta et al., 2016; Zhang et al., IJCAI 2016", make_softsync},
      {"sparseloco", "H local steps, then sparse 2-bit differences with error feedback",
       "Sarfi et al., 2025", make_sparseloco},
      {"sync-sgd", "mean gradient of every step, exact or compressed (QSGD, DGC, PowerSGD); LARS",
       "Goyal et al., 2017; Alistarh et al., NIPS 2017; Lin et al., ICLR 2018; Vogels et al., "
       "NeurIPS 2019; You et al., 2017",
       make_sync_sgd},
  };
  return entries;
}

}  // namespace gossipd::lab
