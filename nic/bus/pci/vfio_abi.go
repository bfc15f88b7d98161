package pci

import "unsafe"

// The kernel's VFIO interface, linux/vfio.h: container and group, type 1 IOMMU. Requests are _IO(';', 100 + n).
const (
	vfioGetAPIVersion       = 0x3b64
	vfioCheckExtension      = 0x3b65
	vfioSetIOMMU            = 0x3b66
	vfioGroupGetStatus      = 0x3b67
	vfioGroupSetContainer   = 0x3b68
	vfioGroupGetDeviceFD    = 0x3b6a
	vfioDeviceGetInfo       = 0x3b6b
	vfioDeviceGetRegionInfo = 0x3b6c
	vfioDeviceReset         = 0x3b6f
	vfioIOMMUGetInfo        = 0x3b70
	vfioIOMMUMapDMA         = 0x3b71
	vfioIOMMUUnmapDMA       = 0x3b72
)

const (
	vfioAPIVersion = 0

	vfioType1v2IOMMU = 3
	vfioNoIOMMU      = 8

	groupViable uint32 = 1 << 0

	deviceReset uint32 = 1 << 0 // the device can be reset
	devicePCI   uint32 = 1 << 1 // it is a PCI function

	regionMmap uint32 = 1 << 2
	regionCaps uint32 = 1 << 3

	regionConfig = 7 // index of configuration space; 0 to 5 are the BARs

	capSparseMmap uint16 = 1 // of a region: only these ranges can be mapped
	capIOVARange  uint16 = 1 // of the IOMMU: only these addresses can be used

	iommuCaps uint32 = 1 << 1

	mapRead  uint32 = 1 << 0
	mapWrite uint32 = 1 << 1
)

// vfio_group_status
type vfioGroupStatus struct {
	argsz uint32
	flags uint32
}

// vfio_device_info
type vfioDeviceInfo struct {
	argsz     uint32
	flags     uint32
	regions   uint32
	irqs      uint32
	capOffset uint32
}

// vfio_region_info
type vfioRegionInfo struct {
	argsz     uint32
	flags     uint32
	index     uint32
	capOffset uint32 // from the start of this struct
	size      uint64
	offset    uint64 // in the device's file
}

// vfio_iommu_type1_info
type vfioIOMMUInfo struct {
	argsz     uint32
	flags     uint32
	pageSizes uint64
	capOffset uint32 // from the start of this struct
	_         uint32
}

// vfio_iommu_type1_dma_map
type vfioDMAMap struct {
	argsz uint32
	flags uint32
	vaddr uint64
	iova  uint64
	size  uint64
}

// vfio_iommu_type1_dma_unmap
type vfioDMAUnmap struct {
	argsz uint32
	flags uint32
	iova  uint64
	size  uint64 // out: number of bytes unmapped
}

// Sizes of the kernel's structures.
var (
	_ [8]byte  = [unsafe.Sizeof(vfioGroupStatus{})]byte{}
	_ [20]byte = [unsafe.Sizeof(vfioDeviceInfo{})]byte{}
	_ [32]byte = [unsafe.Sizeof(vfioRegionInfo{})]byte{}
	_ [24]byte = [unsafe.Sizeof(vfioIOMMUInfo{})]byte{}
	_ [32]byte = [unsafe.Sizeof(vfioDMAMap{})]byte{}
	_ [24]byte = [unsafe.Sizeof(vfioDMAUnmap{})]byte{}

	_ [16]byte = [unsafe.Offsetof(vfioRegionInfo{}.size)]byte{}
	_ [8]byte  = [unsafe.Offsetof(vfioIOMMUInfo{}.pageSizes)]byte{}
	_ [8]byte  = [unsafe.Offsetof(vfioDMAMap{}.vaddr)]byte{}
)
