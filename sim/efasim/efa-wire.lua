-- Shows the frames of the EFA model, wire.md: tshark -X lua_script:sim/efasim/efa-wire.lua -r ab.pcap
local efa = Proto("efasim", "EFA model")
local types = {[1] = "UD send", [2] = "SRD send", [3] = "RDMA write", [4] = "RDMA write, immediate", [5] = "RDMA read", [6] = "Acknowledgement", [7] = "RDMA read, data"}
local statuses = {[0] = "OK", [7] = "Bad address", [8] = "Abort", [9] = "Bad destination QP", [10] = "Receiver not ready", [11] = "Bad length",
	[12] = "Bad status", [14] = "Unknown peer", [18] = "Feature mismatch"}
local f = {
	version = ProtoField.uint8("efasim.version", "Version"),
	type = ProtoField.uint8("efasim.type", "Type", base.DEC, types),
	imm_valid = ProtoField.bool("efasim.flags.imm", "Immediate present", 8, nil, 1),
	status = ProtoField.uint8("efasim.status", "Status", base.DEC, statuses),
	src = ProtoField.ipv6("efasim.src", "Source GID"),
	dst = ProtoField.ipv6("efasim.dst", "Destination GID"),
	srcqp = ProtoField.uint16("efasim.srcqp", "Source QP", base.HEX),
	dstqp = ProtoField.uint16("efasim.dstqp", "Destination QP", base.HEX),
	qkey = ProtoField.uint32("efasim.qkey", "Q_Key", base.HEX),
	imm = ProtoField.uint32("efasim.imm", "Immediate", base.HEX),
	epoch = ProtoField.uint32("efasim.epoch", "Epoch"),
	seq = ProtoField.uint32("efasim.seq", "Sequence number"),
	raddr = ProtoField.uint64("efasim.raddr", "Remote address", base.HEX),
	rkey = ProtoField.uint32("efasim.rkey", "Remote key", base.HEX),
	length = ProtoField.uint32("efasim.length", "RDMA length"),
	paylen = ProtoField.uint32("efasim.paylen", "Payload length"),
	payload = ProtoField.bytes("efasim.payload", "Payload"),
}
efa.fields = f

local places = { -- field, offset, bytes
	{"version", 0, 1}, {"type", 1, 1}, {"imm_valid", 2, 1}, {"status", 3, 1}, {"src", 4, 16}, {"dst", 20, 16}, {"srcqp", 36, 2}, {"dstqp", 38, 2},
	{"qkey", 40, 4}, {"imm", 44, 4}, {"epoch", 48, 4}, {"seq", 52, 4}, {"raddr", 56, 8}, {"rkey", 64, 4}, {"length", 68, 4}, {"paylen", 72, 4},
}

function efa.dissector(buf, pinfo, tree)
	if buf:len() < 84 or buf(0, 1):uint() ~= 1 then return 0 end
	local sub = tree:add(efa, buf(0, 84))
	for _, p in ipairs(places) do sub:add(f[p[1]], buf(p[2], p[3])) end
	local n, typ = math.min(buf(72, 4):uint(), buf:len() - 84), buf(1, 1):uint()
	if n > 0 then sub:add(f.payload, buf(84, n)) end
	pinfo.cols.protocol = "EFASIM"
	local info = string.format("%s %#x -> %#x seq %d", types[typ] or ("type " .. typ), buf(36, 2):uint(), buf(38, 2):uint(), buf(52, 4):uint())
	if typ == 6 then info = info .. " " .. (statuses[buf(3, 1):uint()] or "?") end
	if n > 0 then info = info .. string.format(" len %d", n) end
	pinfo.cols.info = info
end

DissectorTable.get("ethertype"):add(0x88b5, efa)
