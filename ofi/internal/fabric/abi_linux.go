// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package fabric

// Offsets in bytes of the members that the package uses, and sizes of its structs (libfabric ABI 1,
// 64 bits).
const (
	infoCaps, infoMode, infoAddrFormat                = 8, 16, 24
	infoTx, infoRx, infoEp, infoDomain, infoFabric    = 72, 80, 88, 96, 104
	txOrder, txSize, rxOrder, rxSize, epType          = 24, 48, 24, 48, 0
	domainName                                        = 8
	domainKeySize, domainThreading, domainMRMode      = 40, 16, 36
	fabricProvider                                    = 16
	fidOps, opsClose, opsBind, opsControl             = 16, 8, 16, 24
	fabricOps, opsDomain, opsTrywait                  = 24, 8, 40
	domainOps, domainMR, opsAVOpen, opsCQOpen, opsEP  = 24, 32, 8, 16, 24
	opsMRReg, mrDesc, mrKey                           = 8, 24, 32
	epCM, epMsg, epRMA                                = 32, 40, 48
	opsGetName, opsRecv, opsSend, opsRead             = 16, 8, 32, 8
	opsWriteMsg                                       = 48
	cqOps, opsCQRead, opsCQReadErr                    = 24, 8, 24
	avOps, opsInsert, opsRemove                       = 24, 8, 32
	avAttrLen, cqAttrLen, cqAttrFormat, cqAttrWaitObj = 48, 40, 16, 20
	contextLen                                        = 64 // a struct fi_context2
)

// Values of the library's constants.
const (
	version         = 1<<16 | 9 // the first with the mr_mode bits of today
	capMsg          = 1 << 1
	capRMA          = 1 << 2
	capRead         = 1 << 8
	capWrite        = 1 << 9
	capRecv         = 1 << 10
	capSend         = 1 << 11 // FI_TRANSMIT is the same
	capRemoteRead   = 1 << 12
	capRemoteWrite  = 1 << 13
	flagCompletion  = 1 << 24
	flagDelivered   = 1 << 28       // FI_DELIVERY_COMPLETE
	modeContext     = 1<<59 | 1<<52 // FI_CONTEXT, FI_CONTEXT2
	flagSource      = 1 << 57
	typeRDM         = 3
	orderSAS        = 1 << 8
	threadSafe      = 1
	mrLocal         = 1 << 2
	mrVirtAddr      = 1 << 4
	mrAllocated     = 1 << 5
	mrProvKey       = 1 << 6
	formatMsg       = 2
	formatSockaddr  = 1
	formatIn        = 2
	formatIn6       = 3
	waitFD          = 3
	controlGetWait  = 5
	controlEnable   = 6
	eagain          = 11
	eavail          = 259
	addrUnspecified = ^uint64(0)
	queueSize       = 256 // operations of each direction in the endpoint's queues
	mostName        = 256 // bytes of an endpoint's name
)

// cqEntry is a struct fi_cq_msg_entry.
type cqEntry struct {
	context uintptr
	flags   uint64
	length  uint64
}

// cqError is a struct fi_cq_err_entry.
type cqError struct {
	context         uintptr
	flags, length   uint64
	buf             uintptr
	data, tag, olen uint64
	err, provErr    int32
	errData         uintptr
	errDataSize     uint64
}
