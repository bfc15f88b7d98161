// Logs writes a histogram log and a percentile table of made-up latencies with the Java library: java Logs.java LOG HGRM
import java.io.*;
import java.util.Random;
import org.HdrHistogram.*;

public class Logs {
	public static void main(String[] args) throws Exception {
		Random random = new Random(7);
		HistogramLogWriter log = new HistogramLogWriter(args[0]);
		log.outputComment("[Logged with the Java library]");
		log.outputLogFormatVersion();
		long start = 1795479600000L;
		log.outputStartTime(start);
		log.setBaseTime(start);
		log.outputLegend();
		Histogram total = new Histogram(3600000000000L, 3);
		for (int i = 0; i < 24; i++) {
			Histogram h = new Histogram(3600000000000L, 3);
			for (int k = 0; k < 200; k++) {
				long v = (long) (20000 * Math.exp(0.2 * random.nextGaussian()));
				h.recordValue(v);
				total.recordValue(v);
			}
			h.setStartTimeStamp(start + 1000 * i);
			h.setEndTimeStamp(start + 1000 * (i + 1));
			log.outputIntervalHistogram(h);
		}
		log.close();
		try (PrintStream out = new PrintStream(args[1])) {
			total.outputPercentileDistribution(out, 1000.0);
		}
	}
}
