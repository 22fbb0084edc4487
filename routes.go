// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"fmt"
)

// Routes returns a route for each link of this context and each context of this process with which
// it communicates: the transport in use, and counts of what was sent. They are ordered by peer and
// lane.
func (c *Context) Routes() []Route { return c.disp.Routes() }

// Explain adds to err, with which a wait for something of the resources ids has ended, why there is
// no connection with the context of one of them: the result is then a *[NoConnectionError]
// that matches err. Explain returns err itself if err is nil, if there are connections, or if none
// is needed. The methods of this package explain their errors themselves. Explain is for programs
// that wait in another way, for what a goroutine that uses such a method does.
func (c *Context) Explain(err error, ids ...GID) error { return c.disp.Explain(err, ids...) }

// RoutesOf returns the routes of another context of this context's node, as [Context.Routes] does
// there. It asks that context, and waits for the answer until ctx ends. The link over which it asks
// is not among the routes. RoutesOf fails with ErrIdentifiers as [Context.Register] does. It is for
// the command rocl routes.
func (c *Context) RoutesOf(ctx context.Context, id GID) ([]Route, error) {
	if id = id.Context(); id == c.self {
		return c.Routes(), nil
	}
	serial, box, err := c.newMailbox(0, 0, false)
	var routes []Route
	if err == nil {
		defer box.Close()
		routes, err = c.questions.RoutesOf(ctx, id, serial, box)
	}
	if err != nil {
		return nil, fmt.Errorf("rocl: ask context %v for its routes: %w", id, err)
	}
	return routes, nil
}

// Addrs returns the addresses at which other contexts reach this one. For a port at every address
// of the machine, they include the host by which the other nodes know this node. They do not
// include a host by which the nodes knew it before.
func (c *Context) Addrs() []string { return c.ports.Addrs() }
