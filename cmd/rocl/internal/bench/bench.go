package bench

import "github.com/spf13/cobra"

func Commands() []*cobra.Command { return nil }
