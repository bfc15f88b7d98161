// Package appliance tests the appliance: its image, and guests that boot it by UEFI with device models as their cards.
// image builds it, init is its first process.
package appliance
