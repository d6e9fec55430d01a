// Tables in the memory of one process that Spark can MERGE into, which its Auto CDC needs: the wheel of PySpark has none.
package org.apache.spark.sql.memorytables

import java.util
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.analysis.{NoSuchTableException, TableAlreadyExistsException}
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** Each write replaces all rows, or adds some. */
class MemoryCatalog extends TableCatalog with SupportsNamespaces {
  private var given: String = _
  private def tables = Tables.held

  override def initialize(name: String, options: CaseInsensitiveStringMap): Unit = given = name
  override def name(): String = given
  override def listTables(namespace: Array[String]): Array[Identifier] =
    tables.keySet().asScala.filter(_.namespace().sameElements(namespace)).toArray
  override def loadTable(ident: Identifier): Table =
    Option(tables.get(ident)).getOrElse(throw new NoSuchTableException(ident))
  override def createTable(
      ident: Identifier, columns: Array[Column], partitions: Array[Transform],
      properties: util.Map[String, String]): Table = {
    val made = new MemoryTable(ident.toString, CatalogV2Util.v2ColumnsToStructType(columns), properties, Rows.next())
    if (tables.putIfAbsent(ident, made) != null) throw new TableAlreadyExistsException(ident)
    made
  }
  override def alterTable(ident: Identifier, changes: TableChange*): Table = {
    val held = loadTable(ident).asInstanceOf[MemoryTable]
    val schema = CatalogV2Util.applySchemaChanges(held.structure, changes, None, "ALTER TABLE")
    require(schema == held.structure || Rows.of(held.number).isEmpty, "rows do not follow the columns")
    val made = new MemoryTable(
      held.name(), schema, CatalogV2Util.applyPropertiesChanges(held.properties(), changes), held.number)
    tables.put(ident, made)
    made
  }
  override def dropTable(ident: Identifier): Boolean = tables.remove(ident) != null
  override def renameTable(from: Identifier, to: Identifier): Unit = throw new UnsupportedOperationException

  override def listNamespaces(): Array[Array[String]] = Array(Array("default"))
  override def listNamespaces(namespace: Array[String]): Array[Array[String]] = Array.empty
  override def namespaceExists(namespace: Array[String]): Boolean = true
  override def loadNamespaceMetadata(namespace: Array[String]): util.Map[String, String] = util.Map.of()
  override def createNamespace(namespace: Array[String], metadata: util.Map[String, String]): Unit = ()
  override def alterNamespace(namespace: Array[String], changes: NamespaceChange*): Unit = ()
  override def dropNamespace(namespace: Array[String], cascade: Boolean): Boolean = false
}

/** Every session has a catalog of its own; all have the same tables. */
object Tables {
  val held = new ConcurrentHashMap[Identifier, MemoryTable]()
}

/** The rows of all tables, by number: drivers and tasks are one process. */
object Rows {
  private val numbers = new java.util.concurrent.atomic.AtomicInteger
  private val held = new ConcurrentHashMap[Int, Seq[InternalRow]]()
  def next(): Int = numbers.incrementAndGet()
  def of(number: Int): Seq[InternalRow] = held.getOrDefault(number, Seq.empty)
  def put(number: Int, rows: Seq[InternalRow]): Unit = held.put(number, rows)
}

class MemoryTable(
    given: String, val structure: StructType, facts: util.Map[String, String], val number: Int)
  extends Table with SupportsRead with SupportsWrite with SupportsRowLevelOperations {
  override def name(): String = given
  override def columns(): Array[Column] = CatalogV2Util.structTypeToV2Columns(structure)
  override def properties(): util.Map[String, String] = facts
  override def capabilities(): util.Set[TableCapability] =
    util.EnumSet.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.TRUNCATE)
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder =
    () => new MemoryScan(structure, number)
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = new MemoryWrite(number, false)
  override def newRowLevelOperationBuilder(info: RowLevelOperationInfo): RowLevelOperationBuilder =
    () => new RowLevelOperation {
      override def command(): RowLevelOperation.Command = info.command()
      override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder =
        () => new MemoryScan(structure, number)
      override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = new MemoryWrite(number, true)
    }
}

class MemoryScan(structure: StructType, number: Int) extends Scan with Batch {
  override def readSchema(): StructType = structure
  override def toBatch: Batch = this
  override def planInputPartitions(): Array[InputPartition] = Array(new Everything(number))
  override def createReaderFactory(): PartitionReaderFactory = new MemoryReaders
}

class Everything(val number: Int) extends InputPartition

class MemoryReaders extends PartitionReaderFactory {
  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    new PartitionReader[InternalRow] {
      private val rows = Rows.of(partition.asInstanceOf[Everything].number).iterator
      private var row: InternalRow = _
      override def next(): Boolean = { if (rows.hasNext) { row = rows.next(); true } else false }
      override def get(): InternalRow = row.copy()
      override def close(): Unit = ()
    }
}

class MemoryWrite(number: Int, replaces: Boolean) extends WriteBuilder with SupportsTruncate {
  override def truncate(): WriteBuilder = new MemoryWrite(number, true)
  override def build(): Write = new Write {
    override def toBatch: BatchWrite = new BatchWrite {
      override def createBatchWriterFactory(info: PhysicalWriteInfo): DataWriterFactory = new MemoryWriters
      override def commit(messages: Array[WriterCommitMessage]): Unit = {
        val rows = messages.toSeq.flatMap(_.asInstanceOf[Written].rows)
        Rows.put(number, if (replaces) rows else Rows.of(number) ++ rows)
      }
      override def abort(messages: Array[WriterCommitMessage]): Unit = ()
    }
  }
}

class MemoryWriters extends DataWriterFactory {
  override def createWriter(partition: Int, task: Long): DataWriter[InternalRow] = new DataWriter[InternalRow] {
    private val rows = new scala.collection.mutable.ArrayBuffer[InternalRow]
    override def write(row: InternalRow): Unit = rows += row.copy()
    override def commit(): WriterCommitMessage = new Written(rows.toSeq)
    override def abort(): Unit = ()
    override def close(): Unit = ()
  }
}

class Written(val rows: Seq[InternalRow]) extends WriterCommitMessage
