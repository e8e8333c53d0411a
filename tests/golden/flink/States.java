import java.math.BigDecimal;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.*;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.typeutils.GenericTypeInfo;
import org.apache.flink.api.java.typeutils.ListTypeInfo;
import org.apache.flink.api.java.typeutils.MapTypeInfo;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.formats.avro.typeutils.GenericRecordAvroTypeInfo;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/** Runs a job with states of many types over a few numbers, stops it with a savepoint: States DIRECTORY FORMAT BACKEND. */
public class States {
    static final long NUMBERS = 40;
    static final AtomicLong SEEN = new AtomicLong();
    static final Schema SCHEMA = new Schema.Parser().parse(
            "{\"type\":\"record\",\"name\":\"Flight\",\"namespace\":\"org.example\",\"fields\":["
                    + "{\"name\":\"carrier\",\"type\":\"string\"},{\"name\":\"delay\",\"type\":[\"null\",\"double\"]},"
                    + "{\"name\":\"miles\",\"type\":\"long\"},{\"name\":\"stops\",\"type\":{\"type\":\"array\",\"items\":\"int\"}},"
                    + "{\"name\":\"codes\",\"type\":{\"type\":\"map\",\"values\":\"string\"}}]}");

    public enum Color { RED, GREEN, BLUE }

    public static class Address {
        public String street;
        public int number;

        public Address() {}
    }

    public static class Profile {
        public String name;
        public long visits;
        public Integer age;
        public boolean member;
        public Address address;
        public Tuple2<String, Long> best;

        public Profile() {}
    }

    static String key(long number) {
        String[] keys = {"ada", "grace", "jöan", "日本", "😀 smile", "", "x".repeat(200)};
        return keys[(int) (number % keys.length)];
    }

    static class Everything extends KeyedProcessFunction<String, Long, Long> {
        final boolean nulls;
        transient ValueState<Long> count;
        transient ValueState<Integer> small;
        transient ValueState<Short> tiny;
        transient ValueState<Byte> one;
        transient ValueState<Float> single;
        transient ValueState<Double> ratio;
        transient ValueState<Boolean> flag;
        transient ValueState<String> text;
        transient ValueState<byte[]> blob;
        transient ValueState<long[]> numbers;
        transient ValueState<String[]> words;
        transient ValueState<List<String>> tags;
        transient ValueState<Map<String, Integer>> attributes;
        transient ValueState<Tuple3<String, Long, Double>> triple;
        transient ValueState<Row> row;
        transient ValueState<Profile> profile;
        transient ValueState<GenericRecord> flight;
        transient ValueState<BitSet> opaque;
        transient ValueState<Color> color;
        transient ValueState<Instant> instant;
        transient ValueState<BigDecimal> money;
        transient ListState<Long> history;
        transient ListState<Tuple2<String, Long>> pairs;
        transient MapState<String, Long> totals;
        transient MapState<Long, Row> rows;
        transient ReducingState<Long> sum;
        transient AggregatingState<Long, Double> average;
        transient ValueState<Long> recent;
        transient ListState<String> lately;
        transient MapState<String, Long> fresh;

        /** The hashmap backend cannot write a map with a null into a savepoint. */
        Everything(boolean nulls) {
            this.nulls = nulls;
        }

        <T> ValueState<T> value(String name, TypeInformation<T> type) {
            return getRuntimeContext().getState(new ValueStateDescriptor<>(name, type));
        }

        @Override
        public void open(OpenContext context) {
            count = value("count", Types.LONG);
            small = value("small", Types.INT);
            tiny = value("tiny", Types.SHORT);
            one = value("one", Types.BYTE);
            single = value("single", Types.FLOAT);
            ratio = value("ratio", Types.DOUBLE);
            flag = value("flag", Types.BOOLEAN);
            text = value("text", Types.STRING);
            blob = value("blob", TypeInformation.of(byte[].class));
            numbers = value("numbers", TypeInformation.of(long[].class));
            words = value("words", TypeInformation.of(String[].class));
            tags = value("tags", new ListTypeInfo<>(Types.STRING));
            attributes = value("attributes", new MapTypeInfo<>(Types.STRING, Types.INT));
            triple = value("triple", Types.TUPLE(Types.STRING, Types.LONG, Types.DOUBLE));
            row = value("row", Types.ROW_NAMED(new String[] {"word", "n", "ok"}, Types.STRING, Types.LONG, Types.BOOLEAN));
            profile = value("profile", TypeInformation.of(Profile.class));
            flight = value("flight", new GenericRecordAvroTypeInfo(SCHEMA));
            opaque = value("opaque", new GenericTypeInfo<>(BitSet.class));
            color = value("color", TypeInformation.of(Color.class));
            instant = value("instant", Types.INSTANT);
            money = value("money", Types.BIG_DEC);
            history = getRuntimeContext().getListState(new ListStateDescriptor<>("history", Types.LONG));
            pairs = getRuntimeContext().getListState(new ListStateDescriptor<>("pairs", Types.TUPLE(Types.STRING, Types.LONG)));
            totals = getRuntimeContext().getMapState(new MapStateDescriptor<>("totals", Types.STRING, Types.LONG));
            rows = getRuntimeContext().getMapState(
                    new MapStateDescriptor<>("rows", Types.LONG, Types.ROW(Types.STRING, Types.INT)));
            sum = getRuntimeContext().getReducingState(new ReducingStateDescriptor<>("sum", Long::sum, Types.LONG));
            average = getRuntimeContext().getAggregatingState(
                    new AggregatingStateDescriptor<>("average", new Average(), Types.TUPLE(Types.LONG, Types.LONG)));
            StateTtlConfig ttl = StateTtlConfig.newBuilder(Duration.ofDays(20000)).build();
            ValueStateDescriptor<Long> recentState = new ValueStateDescriptor<>("recent", Types.LONG);
            recentState.enableTimeToLive(ttl);
            recent = getRuntimeContext().getState(recentState);
            ListStateDescriptor<String> latelyState = new ListStateDescriptor<>("lately", Types.STRING);
            latelyState.enableTimeToLive(ttl);
            lately = getRuntimeContext().getListState(latelyState);
            MapStateDescriptor<String, Long> freshState = new MapStateDescriptor<>("fresh", Types.STRING, Types.LONG);
            freshState.enableTimeToLive(ttl);
            fresh = getRuntimeContext().getMapState(freshState);
        }

        @Override
        public void processElement(Long number, Context ctx, Collector<Long> out) throws Exception {
            String key = ctx.getCurrentKey();
            long n = number;
            count.update(count.value() == null ? 1 : count.value() + 1);
            small.update((int) -n);
            tiny.update((short) n);
            one.update((byte) -n);
            single.update(n / 4f);
            ratio.update(n / 8d);
            flag.update(n % 2 == 0);
            text.update("text,of " + key + " " + n);
            blob.update(new byte[] {(byte) n, 0, (byte) 255});
            numbers.update(new long[] {n, -n, Long.MIN_VALUE});
            words.update(new String[] {key, null, "w" + n});
            tags.update(new ArrayList<>(Arrays.asList(key, "tag" + n)));
            Map<String, Integer> map = new HashMap<>();
            map.put("n", (int) n);
            map.put("null", null);
            attributes.update(map);
            triple.update(Tuple3.of(key, n, n / 2d));
            row.update(Row.of(n % 3 == 0 ? null : "w" + n, n, n % 2 == 0 ? null : true));
            Profile p = new Profile();
            p.name = key;
            p.visits = n;
            p.age = n % 2 == 0 ? null : (int) n;
            p.member = n % 3 == 0;
            p.address = n % 4 == 0 ? null : new Address();
            if (p.address != null) {
                p.address.street = n % 5 == 0 ? null : "street " + n;
                p.address.number = (int) n;
            }
            p.best = Tuple2.of("best", n);
            profile.update(p);
            GenericRecord record = new GenericData.Record(SCHEMA);
            record.put("carrier", key);
            record.put("delay", n % 2 == 0 ? null : n / 2d);
            record.put("miles", n * 1000);
            record.put("stops", Arrays.asList(1, (int) n));
            record.put("codes", Map.of("from", "EWR"));
            flight.update(record);
            BitSet bits = new BitSet();
            bits.set((int) n);
            opaque.update(bits);
            color.update(Color.values()[(int) (n % 3)]);
            instant.update(Instant.ofEpochSecond(n, 123_456_000));
            money.update(new BigDecimal("-12.5").multiply(new BigDecimal(n)));
            history.add(n);
            pairs.add(Tuple2.of("p,q" + n, n));
            totals.put("t" + n % 3, n);
            if (nulls) {
                totals.put("nothing", null);
            }
            rows.put(n, Row.of("r" + n, n % 2 == 0 ? null : (int) n));
            sum.add(n);
            average.add(n);
            recent.update(n);
            lately.add("l" + n);
            fresh.put("f" + n % 2, n);
            ctx.timerService().registerEventTimeTimer(4_102_444_800_000L + n);
            ctx.timerService().registerProcessingTimeTimer(4_102_444_900_000L + n);
            SEEN.incrementAndGet();
        }
    }

    static class Average implements AggregateFunction<Long, Tuple2<Long, Long>, Double> {
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, 0L);
        }

        public Tuple2<Long, Long> add(Long value, Tuple2<Long, Long> acc) {
            return Tuple2.of(acc.f0 + value, acc.f1 + 1);
        }

        public Double getResult(Tuple2<Long, Long> acc) {
            return (double) acc.f0 / acc.f1;
        }

        public Tuple2<Long, Long> merge(Tuple2<Long, Long> a, Tuple2<Long, Long> b) {
            return Tuple2.of(a.f0 + b.f0, a.f1 + b.f1);
        }
    }

    /** Keyed by a tuple, with more key groups than one byte has. */
    static class ByTuple extends KeyedProcessFunction<Tuple2<Long, String>, Long, Long> {
        transient ValueState<Long> last;

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Types.LONG));
        }

        @Override
        public void processElement(Long number, Context ctx, Collector<Long> out) throws Exception {
            last.update(number);
            SEEN.incrementAndGet();
        }
    }

    /** State that belongs to no key. */
    static class OfOperator extends ProcessFunction<Long, Long> implements CheckpointedFunction {
        transient ListState<Long> dealt;
        transient ListState<String> union;
        transient BroadcastState<String, Long> everywhere;

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            dealt = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("dealt", Types.LONG));
            union = context.getOperatorStateStore().getUnionListState(new ListStateDescriptor<>("union", Types.STRING));
            everywhere = context.getOperatorStateStore().getBroadcastState(
                    new MapStateDescriptor<>("everywhere", Types.STRING, Types.LONG));
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            everywhere.put("a", 1L);
            everywhere.put("b", 2L);
        }

        @Override
        public void processElement(Long number, Context ctx, Collector<Long> out) throws Exception {
            dealt.add(number);
            union.add("u" + number);
            SEEN.incrementAndGet();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", arguments[2]);
        configuration.setString("execution.checkpointing.snapshot-compression", arguments.length > 3 ? "true" : "false");
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(2);
        env.setMaxParallelism(128);
        DataStream<Long> numbers = env.fromSequence(0, Long.MAX_VALUE).uid("source").setParallelism(1)
                .filter(number -> {
                    if (number < NUMBERS) {
                        return true;
                    }
                    Thread.sleep(1); // the source has no end, so that a savepoint can be taken
                    return false;
                })
                .setParallelism(1)
                .assignTimestampsAndWatermarks(
                        WatermarkStrategy.<Long>forMonotonousTimestamps().withTimestampAssigner((n, t) -> n * 100));
        numbers.keyBy(States::key, Types.STRING).process(new Everything(arguments[2].equals("rocksdb"))).uid("everything").name("Everything")
                .sinkTo(new DiscardingSink<>());
        numbers.keyBy(n -> Tuple2.of(n % 5, key(n)), Types.TUPLE(Types.LONG, Types.STRING)).process(new ByTuple())
                .uid("by-tuple").setMaxParallelism(300).sinkTo(new DiscardingSink<>());
        numbers.process(new OfOperator()).uid("of-operator").sinkTo(new DiscardingSink<>());
        numbers.keyBy(States::key, Types.STRING).window(TumblingEventTimeWindows.of(Duration.ofMillis(1_000_000)))
                .reduce(Long::sum).uid("windows").sinkTo(new DiscardingSink<>());
        JobClient job = env.executeAsync("states");
        while (SEEN.get() < 3 * NUMBERS) {
            Thread.sleep(100);
        }
        Thread.sleep(1000);
        System.out.println(job.stopWithSavepoint(false, arguments[0], SavepointFormatType.valueOf(arguments[1]))
                .get(2, TimeUnit.MINUTES));
        System.exit(0);
    }
}
