package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"time"

	diskfs "github.com/diskfs/go-diskfs"
	"github.com/diskfs/go-diskfs/disk"
	"github.com/diskfs/go-diskfs/filesystem"
	"github.com/diskfs/go-diskfs/partition/gpt"
)

const (
	// diskSize is the largest whole number of MiB that is at most 64 MB. Two unified kernel images fit, for upgrades.
	diskSize = 61 << 20
	sector   = 512
	first    = 2048 // of the partition, aligned to a MiB
	last     = diskSize/sector - 2048

	// label is that of the file system: init finds the stick by it.
	label = "REBOUND"

	// Fixed identifiers, so that two builds are the same.
	diskGUID      = "7A51C5B4-3D1E-4B0E-9B7A-52E0B07D0001"
	partitionGUID = "7A51C5B4-3D1E-4B0E-9B7A-52E0B07D0002"
)

// loaderConf is systemd-boot's configuration: the newest file in EFI/Linux that has not failed, at once.
const loaderConf = "timeout 0\r\neditor no\r\n"

type diskFile struct {
	name string
	body []byte
}

// writeDisk writes a disk with a GPT and one EFI system partition (FAT32). at is the time of its files.
func writeDisk(name string, at time.Time, files []diskFile) (err error) {
	// The library takes the time of files from there.
	if err := os.Setenv("SOURCE_DATE_EPOCH", fmt.Sprint(at.Unix())); err != nil {
		return err
	}
	if err := os.RemoveAll(name); err != nil {
		return err
	}
	d, err := diskfs.Create(name, diskSize, diskfs.SectorSize512)
	if err != nil {
		return err
	}
	defer func() {
		if e := d.Close(); err == nil {
			err = e
		}
	}()
	if err := d.Partition(&gpt.Table{LogicalSectorSize: sector, PhysicalSectorSize: sector, ProtectiveMBR: true,
		GUID: diskGUID,
		Partitions: []*gpt.Partition{{Index: 1, Start: first, End: last, Type: gpt.EFISystemPartition, Name: label,
			GUID: partitionGUID}}}); err != nil {
		return fmt.Errorf("%s: partition table: %w", name, err)
	}
	fs, err := d.CreateFilesystem(disk.FilesystemSpec{Partition: 1, FSType: filesystem.TypeFat32, VolumeLabel: label,
		Reproducible: true})
	if err != nil {
		return fmt.Errorf("%s: file system: %w", name, err)
	}
	for _, f := range files {
		if err := writeFile(fs, f); err != nil {
			return fmt.Errorf("%s: %s: %w", name, f.name, err)
		}
	}
	if err := fs.Close(); err != nil {
		return err
	}
	return repairParents(name)
}

// repairParents corrects what the library (1.9.4) writes and fsck.fat reports: the entry ".." of a folder in the root
// directory has to name cluster 0 (Microsoft's "FAT32 File System Specification", on directories), and the number of
// free clusters is unknown.
func repairParents(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	const start, entrySize, folder = first * sector, 32, 0x10
	boot := make([]byte, sector)
	if _, err := f.ReadAt(boot, start); err != nil {
		return err
	}
	u16, u32 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32
	cluster := int64(boot[13]) * sector
	fat := int64(start) + int64(u16(boot[14:]))*sector
	fatSize := int64(u32(boot[36:])) * sector
	data := fat + int64(boot[16])*fatSize
	at := func(n uint32) int64 { return data + int64(n-2)*cluster }
	root := make([]byte, cluster)
	if _, err := f.ReadAt(root, at(u32(boot[44:]))); err != nil {
		return err
	}
	for e := root; len(e) >= entrySize && e[0] != 0; e = e[entrySize:] {
		if e[11] != folder {
			continue
		}
		parent := at(uint32(u16(e[20:]))<<16|uint32(u16(e[26:]))) + entrySize
		for _, half := range []int64{20, 26} {
			if _, err := f.WriteAt([]byte{0, 0}, parent+half); err != nil {
				return err
			}
		}
	}
	table := make([]byte, fatSize)
	if _, err := f.ReadAt(table, fat); err != nil {
		return err
	}
	clusters, free := (int64(u32(boot[32:]))*sector-(data-start))/cluster, uint32(0)
	for n := int64(2); n < clusters+2; n++ {
		if u32(table[4*n:])&0x0fffffff == 0 {
			free++
		}
	}
	info := start + int64(u16(boot[48:]))*sector
	_, err = f.WriteAt(binary.LittleEndian.AppendUint32(nil, free), info+488)
	return err
}

func writeFile(fs filesystem.FileSystem, f diskFile) error {
	if dir := path.Dir(f.name); dir != "/" {
		if err := fs.Mkdir(dir); err != nil {
			return err
		}
	}
	w, err := fs.OpenFile(f.name, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return err
	}
	if _, err := w.Write(f.body); err != nil {
		return err
	}
	return w.Close()
}
