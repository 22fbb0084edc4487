// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"errors"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
)

// Lead does work while this process is the only leader, and waits while another one is. The context
// of work ends when the name is lost; then Lead waits again. Lead returns when work does.
func Lead(ctx context.Context, c *rocl.Context, work func(context.Context, *election.Term) error) error {
	for {
		term, err := election.Hold(ctx, c, rocl.Attrs{"role": "leader"})
		if err != nil {
			return err
		}
		leading, stop := context.WithCancel(ctx)
		context.AfterFunc(term.Context(), stop)
		err = work(leading, term)
		stop()
		lost := errors.Is(term.Err(), election.ErrLost)
		if cerr := term.Close(); !lost {
			return errors.Join(err, cerr)
		}
	}
}
