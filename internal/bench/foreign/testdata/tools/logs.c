/* logs writes a histogram log and a percentile table of made-up latencies with the C library: logs LOG HGRM */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <hdr/hdr_histogram.h>
#include <hdr/hdr_histogram_log.h>

int main(int argc, char **argv)
{
	struct hdr_log_writer writer;
	struct hdr_histogram *h, *total;
	hdr_timespec at = { .tv_sec = 1795479600 }, length = { .tv_sec = 1 };
	FILE *log = fopen(argv[1], "w"), *table = fopen(argv[2], "w");

	hdr_init(1, 3600000000LL, 3, &h);
	hdr_init(1, 3600000000LL, 3, &total);
	hdr_log_writer_init(&writer);
	hdr_log_write_header(&writer, log, "microseconds", &at);
	srand(7);
	for (int i = 0; i < 12; i++) {
		hdr_reset(h);
		for (int k = 0; k < 200; k++) {
			int64_t v = 2000 + rand() % 1000;
			hdr_record_value(h, v);
			hdr_record_value(total, v);
		}
		hdr_log_write(&writer, log, &at, &length, h);
		at.tv_sec++;
	}
	hdr_percentiles_print(total, table, 5, 1.0, CLASSIC);
	fclose(log);
	fclose(table);
}
