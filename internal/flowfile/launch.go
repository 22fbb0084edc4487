// SPDX-License-Identifier: Apache-2.0

package flowfile

// The variables of the environment by which a launcher tells a program what to run.
const (
	EnvGroup   = "ROCL_FLOW_GROUP"   // the group
	EnvRun     = "ROCL_FLOW_RUN"     // the identifier of the run
	EnvFile    = "ROCL_FLOW_FILE"    // the name of the configuration, for errors
	EnvConfig  = "ROCL_FLOW_CONFIG"  // the text of the configuration
	EnvDrawing = "ROCL_FLOW_DRAWING" // a file: the program writes the Drawing of its graph there, and runs nothing
)

// ExitOther is the exit code of a program whose group has ended because another one has failed.
const ExitOther = 3
