// logs writes a histogram log and a percentile table of made-up latencies with the JavaScript library: node logs.js LOG HGRM
const hdr = require("hdr-histogram-js");
const fs = require("fs");

let out = "";
const writer = new hdr.HistogramLogWriter((text) => { out += text; });
const start = 1795479600000;
writer.outputLogFormatVersion();
writer.outputStartTime(start);
writer.outputLegend();
let state = 7;
const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
const total = hdr.build({ numberOfSignificantValueDigits: 3 });
for (const tag of ["read", "write"]) {
	for (let i = 0; i < 10; i++) {
		const h = hdr.build({ numberOfSignificantValueDigits: 3 });
		for (let k = 0; k < 100; k++) {
			const v = Math.round((tag === "read" ? 100000 : 300000) * (1 + random()));
			h.recordValue(v);
			total.recordValue(v);
		}
		h.startTimeStampMsec = start + 1000 * i;
		h.endTimeStampMsec = start + 1000 * (i + 1);
		h.tag = tag;
		writer.outputIntervalHistogram(h);
	}
}
fs.writeFileSync(process.argv[2], out);
fs.writeFileSync(process.argv[3], total.outputPercentileDistribution(5, 1000));
