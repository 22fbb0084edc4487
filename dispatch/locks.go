// SPDX-License-Identifier: Apache-2.0

package dispatch

// The levels of this package's locks, from the outermost. Package lock says what they
// are for, and the package documentation what each lock guards.
type (
	levelEndpoint   struct{} // endpoint.mu
	levelMailbox    struct{} // Mailbox.mu
	levelLocalQueue struct{} // localQueue.mu
	levelLink       struct{} // link.mu
	levelContext    struct{} // Dispatcher.mu
	levelWatched    struct{} // watched.mu
	levelLosses     struct{} // losses.mu
)

func (levelEndpoint) Depth() (int, string)   { return 25, "endpoint" }
func (levelMailbox) Depth() (int, string)    { return 40, "mailbox" }
func (levelLocalQueue) Depth() (int, string) { return 45, "local queue" }
func (levelLink) Depth() (int, string)       { return 50, "link" }
func (levelContext) Depth() (int, string)    { return 60, "context" }
func (levelWatched) Depth() (int, string)    { return 70, "watched" }
func (levelLosses) Depth() (int, string)     { return 90, "losses" }
