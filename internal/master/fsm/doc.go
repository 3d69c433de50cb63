package fsm

// Decisions of this machine where PCCL 1.0.0 has a quirk, and where each is
// made. Tests carry the number of the quirk in their names; corrected_test.go
// has those that the transcripts of the original show.
//
//	Q4   the solver's ring is that of the next round         optimize.go, ring.go
//	Q5   unreachable pairs are routed around; only without
//	     a ring somebody goes: who is named most, a newcomer
//	     first                                               ring.go
//	Q6   a round fails only if one of its own participants
//	     left                                                register.go
//	Q8   the last accepted client leaves: one accept round   round.go
//	Q9   no usable measurement: the ring stays               optimize.go
//	Q10  impossible reports are ignored and named            optimize.go
//	Q11  optimize votes are re-counted when somebody leaves  register.go
//	Q12  only members have a say in an election              sync.go
//	Q13  an election without candidates always ends in kicks sync.go
//	Q14  distributors are spread, receive-only ones last     sync.go
//	Q15  an empty group leaves no collectives behind; the
//	     revision that it expects is kept (as PCCL), but the
//	     state before it will do as well                     resume.go
//	Q40  nothing is kept about a client that left            register.go
//	Q47  differing arguments are named; among gopccl ends
//	     the operation is aborted with the reason            collective.go
//	Q48  a revision counts only with the right to vote       sync.go
//	Q52  the global world size counts those who wait         round.go (as PCCL)
//	Q53  a key is named once                                 sync.go
//	Q54  a refusal is answered, nothing else                 register.go
//	Q55  no success for a peer that reported failure         round.go
//	Q58  a shorter list of entries is a mismatch             sync.go
//	Q59  mixed flavours of a round end in an establish round
//	     if a gopccl end takes part                          round.go
//	Q70  first election: the highest revision wins;
//	     Config.PCCLRevisionRule selects PCCL's way          sync.go
//	Q71  no state to elect: the whole group is kicked        sync.go (as PCCL)
//	Q72  votes that wait for each other are resolved if a
//	     gopccl end is among them, else as PCCL              deadlock.go
//
// What PCCL has no counterpart for: heartbeats, bounds on every phase, the
// master's own pauses (liveness.go), and the expected revision of a state
// whose last holder left before anybody had it, which stays (sync.go): a peer
// may bring it back from a checkpoint.
