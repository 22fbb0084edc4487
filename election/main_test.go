// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
)

// childEnv is set in the environment of a process that a test has started.
const childEnv = "ELECTION_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := runChild(context.Background()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// runChild is the main function of a process. It says when it has a context, and for each line of
// its input, begins to hold the name or says whether it does.
func runChild(ctx context.Context) error {
	c, err := rocl.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println("open")
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return in.Err()
	}
	fmt.Println("waits")
	term, err := election.Hold(ctx, c, role)
	if err != nil {
		return err
	}
	fmt.Println("holds", term.Number())
	for in.Scan() {
		fmt.Println("holds", term.Number(), term.Err())
	}
	return errors.Join(in.Err(), term.Close())
}
