// Package fsm is a peer's session with the master as a pure machine (control
// spec, section 13): calls, packets and results of work come in as events,
// packets to send and work to do go out as effects. It has no clock, socket,
// goroutine or global random.
//
// # The session
//
//	statusFresh --CallConnect--> statusLive --CallClose, or no master--> statusOver
//	                              |
//	                              +--MasterGone--> statusDetached --Attached--> statusLive
//	                                                |
//	                                                +--CallClose, or no master--> statusOver
//
// A session that can resume is detached while there is no master, until one takes it
// back or the time for that is over (resume.go). Any other one ends.
//
// Whatever ends the session aborts what runs and answers every call, those whose
// memory is still in use when the work on it has ended. Nothing is sent any more.
//
// # The phase-changing call
//
// Connecting, updating and optimizing the topology and synchronising a shared
// state exclude each other and collectives. The one in progress is at a step.
// Numbers are packets of the master (M2C), names are events; "repair" is the round
// that is due after a collective has failed, and "measured" is the end of the probes,
// which is an event of its own or the packet with which the master ends its calls.
// A packet that neither moves the step on nor has a rule of its own ends the session.
//
//	stepNone --CallConnect--> stepRegister --1--> stepInfo --2--> stepConnecting --Established--> stepRing --3--> stepNone
//	 |                                                             |                               |
//	 |                                                             +--startOver--> stepInfo        +--3--> stepInfo
//	 |                                                                                             |
//	 |                                                                                             +--startOver--> stepInfo
//	 |
//	 +--CallUpdate--> stepInfo
//	 |
//	 +--repair--> stepInfo
//	 |
//	 +--CallOptimize--> stepRequests --5--> stepProbing --measured--> stepOptimized --6--> stepInfo
//	 |                   |                                             |
//	 |                   +--5--> stepOptimized                         +--6--> stepRequests
//	 |
//	 +--CallSync--> stepElection --7--> stepFetching --Fetched--> stepSynced --8--> stepNone
//	                 |
//	                 +--7--> stepSynced
//	                 |
//	                 +--startOver--> stepNone
//
// A failed round (3) and a failed optimization (6) are voted for again, and an
// optimization ends with the round that brings its ring. Without a caller, a call
// goes on in the background: others count on its votes. startOver makes a newcomer of a
// peer whose world turns out to be none (newcomer.go).
//
// # Collectives
//
// Any number is in flight, each in a state of its own. The verdict (11) may come in
// any state from opRunning on; it ends the data phase, and 10 makes it final. An
// eager collective runs before all have voted (eager.go). The end of the session
// settles all.
//
//	opQueued --room--> opVoting --9--> opRunning --DataEnded--> opReported --10--> opSettled
//	 |                  |
//	 |                  +--9--> opReported (it was canceled meanwhile)
//	 |                  |
//	 |                  +--DataEnded--> opAhead --9--> opReported
//	 |
//	 +--begins eagerly--> opHeld --let go--> opVoting
//	                       |
//	                       +--DataEnded--> opAhead
//
// # What goes on beside
//
// The query whether newcomers wait (4) overlaps with everything. A ring to come is
// connected for (70) and taken, or given up (71), between two commences (switch.go).
// Probes of an optimization are prepared (66), sent (67) and ended (68) as the master
// calls for them (optimize.go). Newcomers are tried (75) at any time. Heartbeats (64)
// and the news of a peer that is gone (65) concern no call. The names of members (90) are
// passed on.
package fsm
