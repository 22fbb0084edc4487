// SPDX-License-Identifier: Apache-2.0

//go:build !ofi

package bench

import "github.com/rocl-go/rocl/subsys"

// Without the build tag ofi nothing is measured over libfabric.
var (
	fabrics     []string
	fabricCases []comparison
)

func fabricTransport(string) subsys.Transport { return nil }

func (*answerer) fabric(task string, _ []int) (answer string) { return "no task " + task }
