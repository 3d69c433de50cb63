// Package fsm is the master of CCoIP as a pure machine (control spec, sections
// 5 to 12): events in, effects out. It has no clock, socket, goroutine, global
// random or decision by map order; time and uuids come from outside, so the
// same events give the same effects byte for byte.
//
// # States of a client
//
// A client that has registered is in one state. Numbers are packets that it
// sends (C2M), words are what the machine concludes when those it waits for have
// come so far: all accepted clients for rounds of newcomers and optimizations, the
// members of its group for everything else. A packet that no arrow and no row of
// the table in transitions.go allows costs the client its connection, and one that
// goes is out of every wait at once. One that may come back goes a little later
// (reassemble.go), unless its neighbours have lost it as well (lostlinks.go).
//
//	Idle --2--> VoteAccept --all voted--> Connecting --3--> Waiting --ring stands--> Idle
//	 |                                     |                 |
//	 |                                     |                 +--no ring--> ConnectFailed
//	 |                                     |
//	 |                                     +--3--> ConnectFailed --2--> VoteAccept
//	 |                                              |
//	 |                                              +--2--> VoteEstablish
//	 |                                              |
//	 |                                              +--let in--> Connecting
//	 |
//	 +--2--> VoteEstablish --all voted--> Connecting
//	 |
//	 +--let in--> Connecting
//	 |
//	 +--5--> VoteOptimize --all voted--> Optimizing --7--> VoteOptimizeDone --solved--> Idle
//	 |
//	 +--8--> VoteSync --elected--> Distribute --9--> VoteSyncDone --all done--> Idle
//	 |        |
//	 |        +--elected--> Request --9--> VoteSyncDone
//	 |
//	 +--10--> Collective --all released--> Idle
//
// A newcomer is registered and not accepted: it waits in Idle until a round lets
// it in (register.go, round.go), and is accepted when that round ends. In
// Collective a client has any number of collectives, each with a state of its own
// (collective.go). One that began before the commence may send 11 in VoteInit
// already, which counts when all have voted. A member that is asked for the result, or
// gets it, performs once more until it has answered (forward.go).
//
//	VoteInit --all voted--> Perform --11--> VoteComplete --all complete--> released
//
// The query whether newcomers wait (4), and packets that only tell something (6,
// 64 to 66, 68, 71 to 74, 88, 89), leave the state as it is.
//
// # What goes on beside
//
// A newcomer is tried before members wait for it (preflight.go):
//
//	untried --a member has time--> tried --both reach--> proved --round--> member
//	 |                              |
//	 |                              +--nobody can say--> unproved --round--> member
//	 |                              |
//	 |                              +--cannot reach, or be reached--> expelled
//	 |
//	 +--nobody can try--> unproved
//
// The rules on peers that cost a round, and on how long their addresses stay
// outside, are in trust.go; what they have cost, and how it is paid back, is in debt.go.
//
// The links of an optimization are measured in rounds that the master calls for
// (schedule.go, sharing.go), round after round of a stage:
//
//	stageTogether --through--> stageSuspects --through--> stageShares --through--> solved
//
// A ring that a search beside the run finds (adopt.go) comes into force by the
// next round, or by a change that the members connect for (switch.go), and is
// timed against the one before it (trial.go):
//
//	found --better--> preferred --round--> installed --not slower--> kept
//	 |                 |                    |
//	 |                 |                    +--slower--> refused
//	 |                 |
//	 |                 +--offered--> change --all prepared--> installed
//	 |                                |
//	 |                                +--not connected--> refused
//	 |
//	 +--too soon--> postponed --patience is over--> preferred
//
// Collectives that want it have all members of a group connect with each other
// (mesh.go), once between two rounds:
//
//	meshNone --wanted--> meshPreparing --all connected--> meshDirect
//	 |                    |
//	 |                    +--not connected--> meshRefused
//	 |
//	 +--too many--> meshRefused
//
// What other plans than the ring they have then is computed in the step for few members,
// and beside the machine for more (draft.go); they are offered like a ring.
//
// # After another master
//
// A master that comes after another one knows nothing but the registry, or not even that
// (recover.go). It decides nothing until the members of every group have reported what
// they hold, or were waited for; then it makes the world what it was (rebuild.go,
// restore_ops.go), and counts votes of which nobody has heard the end as sent now. Until
// then registrations of newcomers wait. Where there is an authority, what a later master
// has to know is committed, and a member goes only when it has confirmed that this
// master leads (registry.go).
//
//	untouched --an identity, or a registry--> recovering --all back, or waited for--> over
//
// # Quirks
//
// Decisions of this machine where PCCL 1.0.0 has a quirk, and where each is
// made. Tests carry the number of the quirk in their names; corrected_test.go
// has those that the transcripts of the original show.
//
//	Q4   the solver's ring is that of the next round         optimize.go, ring.go
//	Q5   unreachable pairs are routed around; only without
//	     a ring one peer goes: the one named most, a newcomer
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
//	Q47  differing arguments are named; among gopccl peers
//	     the operation is aborted with the reason            collective.go
//	Q48  a revision counts only with the right to vote       sync.go
//	Q52  the global world size counts members only           round.go
//	Q53  a key is named once                                 sync.go
//	Q54  a refusal is answered, nothing else                 register.go
//	Q55  no success for a peer that reported failure         round.go
//	Q58  a shorter list of entries is a mismatch             sync.go
//	Q59  mixed flavours of a round end in an establish round
//	     if a gopccl peer takes part                         round.go
//	Q70  first election: the highest revision wins;
//	     Config.PCCLRevisionRule selects PCCL's way          sync.go
//	Q71  no state to elect: the whole group is kicked        sync.go (as PCCL)
//	Q72  votes that wait for each other are resolved if a
//	     gopccl peer is among them, else as PCCL             deadlock.go
//
// PCCL has no counterpart for heartbeats, bounds on every phase and the master's
// own pauses (liveness.go), and for the expected revision of a state whose last
// holder left before anybody had it. That revision stays (sync.go): a peer may
// bring it back from a checkpoint.
package fsm
