package virtio

// Vendor-specific capability that locates a structure (§4.1.4), offsets in bytes.
const (
	capLen    = 2  // length of the capability
	capType   = 3  // cfg_type
	capBAR    = 4  // 0 to 5; other values are reserved
	capOffset = 8  // of the structure in the BAR
	capLength = 12 // of the structure
	capMult   = 16 // notification capability: notify_off_multiplier (§4.1.4.4)

	capSize       = 16
	capNotifySize = 20
)

// cfg_type (§4.1.4).
const (
	cfgCommon = 1
	cfgNotify = 2
	cfgISR    = 3
	cfgDevice = 4
)

// reg is the offset of a field of the common configuration structure (§4.1.4.3). A field is accessed in its own width,
// and 64 bits as two of 32, low half first (§4.1.3.1).
type reg uint64

const (
	regDeviceFeatureSelect reg = 0x00 // device_feature_select  RW  32  which half device_feature shows
	regDeviceFeature       reg = 0x04 // device_feature         RO  32
	regDriverFeatureSelect reg = 0x08 // driver_feature_select  RW  32
	regDriverFeature       reg = 0x0C // driver_feature         RW  32
	regNumQueues           reg = 0x12 // num_queues             RO  16
	regDeviceStatus        reg = 0x14 // device_status          RW   8
	regConfigGeneration    reg = 0x15 // config_generation      RO   8  changes with the device configuration
	regQueueSelect         reg = 0x16 // queue_select           RW  16  which queue the fields below belong to
	regQueueSize           reg = 0x18 // queue_size             RW  16  the largest after a reset; 0 for no queue
	regQueueEnable         reg = 0x1C // queue_enable           RW  16
	regQueueNotifyOff      reg = 0x1E // queue_notify_off       RO  16  in units of notify_off_multiplier
	regQueueDesc           reg = 0x20 // queue_desc             RW  64  Descriptor Area
	regQueueDriver         reg = 0x28 // queue_driver           RW  64  Driver Area
	regQueueDevice         reg = 0x30 // queue_device           RW  64  Device Area

	commonSize = 0x38
)

// device_status (§2.1).
const (
	statusAcknowledge = 1
	statusDriver      = 2
	statusDriverOK    = 4
	statusFeaturesOK  = 8
	statusNeedsReset  = 64
	statusGone        = 0xFF // all ones: nothing answers. Bits 4 and 5 are reserved, so no device shows it
)

// feature is a set of feature bits (§2.2).
type feature uint64

const (
	featMTU         feature = 1 << 3  // VIRTIO_NET_F_MTU           §5.1.3
	featMAC         feature = 1 << 5  // VIRTIO_NET_F_MAC
	featStatus      feature = 1 << 16 // VIRTIO_NET_F_STATUS
	featCtrlVQ      feature = 1 << 17 // VIRTIO_NET_F_CTRL_VQ
	featCtrlRX      feature = 1 << 18 // VIRTIO_NET_F_CTRL_RX
	featMQ          feature = 1 << 22 // VIRTIO_NET_F_MQ
	featCtrlMAC     feature = 1 << 23 // VIRTIO_NET_F_CTRL_MAC_ADDR
	featVersion1    feature = 1 << 32 // VIRTIO_F_VERSION_1         §6
	featPlatform    feature = 1 << 33 // VIRTIO_F_ACCESS_PLATFORM
	featPacked      feature = 1 << 34 // VIRTIO_F_RING_PACKED
	featOrder       feature = 1 << 36 // VIRTIO_F_ORDER_PLATFORM
	featNotifyData  feature = 1 << 38 // VIRTIO_F_NOTIFICATION_DATA
	featSpeedDuplex feature = 1 << 63 // VIRTIO_NET_F_SPEED_DUPLEX

	// accepted are the features that are used if they are offered. ORDER_PLATFORM requires barriers that are sufficient
	// for a card, too, and those of nic/bus/mmio are.
	accepted = featVersion1 | featMTU | featMAC | featStatus | featCtrlVQ | featCtrlRX | featCtrlMAC | featPlatform |
		featPacked |
		featOrder | featNotifyData | featSpeedDuplex
)

// Fields of the device configuration (§5.1.4), offsets in bytes.
const (
	confMAC      = 0  // mac                  48, read by bytes
	confStatus   = 6  // status               16, with STATUS
	confMaxPairs = 8  // max_virtqueue_pairs  16, with MQ
	confMTU      = 10 // mtu                  16, with MTU
	confSpeed    = 12 // speed                32, with SPEED_DUPLEX: Mbit/s, or more than speedMax for unknown

	confLinkUp = 1          // VIRTIO_NET_S_LINK_UP
	speedMax   = 0x7FFFFFFF //
)

// Commands of the control queue (§5.1.6.5): class and command.
var (
	ctrlPromisc  = [2]byte{0, 0} // VIRTIO_NET_CTRL_RX_PROMISC   §5.1.6.5.1
	ctrlAllMulti = [2]byte{0, 1} // VIRTIO_NET_CTRL_RX_ALLMULTI
	ctrlTable    = [2]byte{1, 0} // VIRTIO_NET_CTRL_MAC_TABLE_SET §5.1.6.5.2
	ctrlAddress  = [2]byte{1, 1} // VIRTIO_NET_CTRL_MAC_ADDR_SET
	ctrlPairs    = [2]byte{4, 0} // VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET §5.1.6.5.5
)

const ctrlOK = 0 // VIRTIO_NET_OK
