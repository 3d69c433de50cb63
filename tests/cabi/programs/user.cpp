// A PCCL user in C++: user PORT
#include "layout.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static void check(pcclResult_t r, const char *what) {
    if (r != pcclSuccess) throw std::runtime_error(std::string(what) + ": " + std::to_string(r));
}
#define OK(call) check(call, #call)

struct Free {
    void operator()(pcclComm_t *c) const { pcclDestroyCommunicator(c); }
    void operator()(pcclMasterInstance_t *m) const {
        pcclInterruptMaster(m);
        pcclMasterAwaitTermination(m);
        pcclDestroyMaster(m);
    }
};
using Comm = std::unique_ptr<pcclComm_t, Free>;
using Master = std::unique_ptr<pcclMasterInstance_t, Free>;

static void train(ccoip_socket_address_t at) {
    const pcclCommCreateParams_t params{at, 0, 1};
    pcclComm_t *raw = nullptr;
    OK(pcclCreateCommunicator(&params, &raw));
    const Comm comm(raw);
    OK(pcclConnect(raw));
    for (int world = 0; world < 3;) {
        bool pending = false;
        OK(pcclGetAttribute(raw, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE, &world));
        if (world == 3) break;
        OK(pcclArePeersPending(raw, &pending));
        if (pending) OK(pcclUpdateTopology(raw));
    }
    std::vector<float> weights(4096, 1.0F);
    pcclTensorInfo_t tensor{"weights", weights.data(), weights.size(), pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t state{0, 1, &tensor};
    OK(pcclSynchronizeSharedState(raw, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, nullptr));
    const pcclReduceDescriptor_t d{
        weights.size(), pcclSum, 0, {pcclFloat, pcclDistributionNone}, {pcclFloat, pcclQuantNone}};
    pcclReduceInfo_t info{};
    OK(pcclAllReduce(weights.data(), weights.data(), &d, raw, &info));
    for (float w : weights)
        if (w != 3.0F) throw std::runtime_error("wrong sum");
    if (info.local_world_size != 3) throw std::runtime_error("wrong world");
}

int main(int, char **argv) {
    try {
        ccoip_socket_address_t at{};
        at.inet.protocol = inetIPv6;
        at.inet.ipv6.data[15] = 1;
        at.port = static_cast<uint16_t>(std::atoi(argv[1]));
        OK(pcclInit());
        pcclMasterInstance_t *raw = nullptr;
        OK(pcclCreateMaster(at, &raw));
        const Master master(raw);
        OK(pcclRunMaster(raw));
        std::vector<std::thread> peers;
        for (int i = 0; i < 3; i++) peers.emplace_back([at] {
            try {
                train(at);
            } catch (const std::exception &e) {
                std::fprintf(stderr, "%s\n", e.what());
                std::exit(1);
            }
        });
        for (auto &p : peers) p.join();
        std::puts("passed");
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
