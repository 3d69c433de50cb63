/* Sizes, offsets and numbers of PCCL 1.0.0 on 64 bit systems, checked by the compiler. */
#ifndef LAYOUT_H
#define LAYOUT_H

#include <pccl.h>

#define CHECK(name, what) typedef char check_##name[(what) ? 1 : -1]
#define AT(type, member, offset) (offsetof(type, member) == (offset))

CHECK(ipv4, sizeof(ccoip_ipv4_address_t) == 4);
CHECK(ipv6, sizeof(ccoip_ipv6_address_t) == 16);
CHECK(inet, sizeof(ccoip_inet_address_t) == 24 && AT(ccoip_inet_address_t, protocol, 0) &&
                AT(ccoip_inet_address_t, ipv4, 4) && AT(ccoip_inet_address_t, ipv6, 8));
CHECK(socket, sizeof(ccoip_socket_address_t) == 28 && AT(ccoip_socket_address_t, inet, 0) &&
                  AT(ccoip_socket_address_t, port, 24));
CHECK(protocols, sizeof(ccoip_inet_protocol_t) == 4 && inetIPv4 == 0 && inetIPv6 == 1);

CHECK(params, sizeof(pcclCommCreateParams_t) == 36 && AT(pcclCommCreateParams_t, master_address, 0) &&
                  AT(pcclCommCreateParams_t, peer_group, 28) &&
                  AT(pcclCommCreateParams_t, p2p_connection_pool_size, 32));
CHECK(build_info, sizeof(pcclBuildInfo_t) == 1 && AT(pcclBuildInfo_t, has_cuda_support, 0));
CHECK(operand, sizeof(pcclReduceOperandDescriptor_t) == 8 && AT(pcclReduceOperandDescriptor_t, datatype, 0) &&
                   AT(pcclReduceOperandDescriptor_t, distribution_hint, 4));
CHECK(quantization, sizeof(pcclQuantizationOptions_t) == 8 && AT(pcclQuantizationOptions_t, quantized_datatype, 0) &&
                        AT(pcclQuantizationOptions_t, algorithm, 4));
CHECK(reduce, sizeof(pcclReduceDescriptor_t) == 40 && AT(pcclReduceDescriptor_t, count, 0) &&
                  AT(pcclReduceDescriptor_t, op, 8) && AT(pcclReduceDescriptor_t, tag, 16) &&
                  AT(pcclReduceDescriptor_t, src_descriptor, 24) &&
                  AT(pcclReduceDescriptor_t, quantization_options, 32));
CHECK(reduce_op, sizeof(pcclReduceOpDescriptor_t) == 56 && AT(pcclReduceOpDescriptor_t, sendbuf, 0) &&
                     AT(pcclReduceOpDescriptor_t, recvbuf, 8) && AT(pcclReduceOpDescriptor_t, descriptor, 16));
CHECK(reduce_info, sizeof(pcclReduceInfo_t) == 24 && AT(pcclReduceInfo_t, local_world_size, 0) &&
                       AT(pcclReduceInfo_t, tx_bytes, 8) && AT(pcclReduceInfo_t, rx_bytes, 16));
CHECK(async, sizeof(pcclAsyncReduceOp_t) == 16 && AT(pcclAsyncReduceOp_t, comm, 0) && AT(pcclAsyncReduceOp_t, tag, 8));
CHECK(tensor, sizeof(pcclTensorInfo_t) == 40 && AT(pcclTensorInfo_t, name, 0) && AT(pcclTensorInfo_t, data, 8) &&
                  AT(pcclTensorInfo_t, count, 16) && AT(pcclTensorInfo_t, datatype, 24) &&
                  AT(pcclTensorInfo_t, device_type, 28) && AT(pcclTensorInfo_t, allow_content_inequality, 32));
CHECK(state, sizeof(pcclSharedState_t) == 24 && AT(pcclSharedState_t, revision, 0) && AT(pcclSharedState_t, count, 8) &&
                 AT(pcclSharedState_t, infos, 16));
CHECK(sync_info, sizeof(pcclSharedStateSyncInfo_t) == 16 && AT(pcclSharedStateSyncInfo_t, tx_bytes, 0) &&
                     AT(pcclSharedStateSyncInfo_t, rx_bytes, 8));

CHECK(enums, sizeof(pcclResult_t) == 4 && sizeof(pcclDataType_t) == 4 && sizeof(pcclDeviceType_t) == 4 &&
                 sizeof(pcclRedOp_t) == 4 && sizeof(pcclAttribute_t) == 4 && sizeof(pcclDistributionHint_t) == 4 &&
                 sizeof(pcclSharedStateSyncStrategy_t) == 4 && sizeof(pcclQuantizationAlgorithm_t) == 4);
CHECK(results, pcclSuccess == 0 && pcclNotInitialized == 1 && pcclInternalError == 2 && pcclInvalidArgument == 3 &&
                   pcclInvalidUsage == 4 && pcclTooFewPeers == 5 && pcclMasterConnectionFailed == 6 &&
                   pcclRankConnectionFailed == 7 && pcclRankConnectionLost == 8 && pcclNoSharedStateAvailable == 9 &&
                   pcclPendingAsyncOps == 10 && pcclUpdateTopologyFailed == 11 && pcclTopologyOptimizationFailed == 12);
CHECK(types, pcclUint8 == 0 && pcclInt8 == 1 && pcclInt16 == 2 && pcclUint16 == 3 && pcclUint32 == 4 &&
                 pcclInt32 == 5 && pcclUint64 == 6 && pcclInt64 == 7 && pcclFloat16 == 8 && pcclBFloat16 == 9 &&
                 pcclFloat == 10 && pcclDouble == 11);
CHECK(devices, pcclDeviceCpu == 0 && pcclDeviceCuda == 1);
CHECK(ops, pcclSum == 0 && pcclAvg == 1 && pcclProd == 2 && pcclMax == 3 && pcclMin == 4);
CHECK(attributes, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE == 1 && PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE == 2 &&
                      PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS == 3 && PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE == 4);
CHECK(strategies, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR == 0 &&
                      PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY == 1 &&
                      PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY == 2);
CHECK(hints, pcclDistributionNone == 0 && pcclDistributionNormal == 1 && pcclDistributionUniform == 2);
CHECK(algorithms, pcclQuantNone == 0 && pcclQuantMinMax == 1 && pcclQuantZeroPointScale == 2);

#endif
