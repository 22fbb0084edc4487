// SPDX-License-Identifier: Apache-2.0

package dataflow

// SetCores is setCores.
var SetCores = setCores
