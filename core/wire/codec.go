package wire

// MaxPacket is the largest length field of an LTV packet that is read
// (control spec, section 2; the limit of PCCL's peers, ours everywhere).
const MaxPacket = 64 << 20

// FrameHeaderSize is the size of a multiplexed frame's header (data spec, section 1.3).
const FrameHeaderSize = 24

// MaxFramePayload is the largest payload of a multiplexed frame (PCCL exits above it).
const MaxFramePayload = 1<<30 - 16
