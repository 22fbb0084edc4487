// SPDX-License-Identifier: Apache-2.0

package dispatch

// The levels of this package's locks, from the outermost. Package lock says what they
// are for, and the package documentation what each lock guards.
type (
	levelToken      struct{} // progress.token
	levelEndpoint   struct{} // endpoint.mu
	levelMailbox    struct{} // Mailbox.mu
	levelLocalQueue struct{} // localQueue.mu
	levelLink       struct{} // link.mu
	levelContext    struct{} // Dispatcher.mu
	levelWatched    struct{} // watched.mu
	levelParked     struct{} // progress.parkedMu
	levelLosses     struct{} // losses.mu
)

func (levelToken) Depth() (int, string)      { return 10, "token" }
func (levelEndpoint) Depth() (int, string)   { return 25, "endpoint" }
func (levelMailbox) Depth() (int, string)    { return 40, "mailbox" }
func (levelLocalQueue) Depth() (int, string) { return 45, "local queue" }
func (levelLink) Depth() (int, string)       { return 50, "link" }
func (levelContext) Depth() (int, string)    { return 60, "context" }
func (levelWatched) Depth() (int, string)    { return 70, "watched" }
func (levelParked) Depth() (int, string)     { return 80, "parked" }
func (levelLosses) Depth() (int, string)     { return 90, "losses" }
